"""The names that each room shows to users and to other rooms."""

from __future__ import annotations

FACES = {
    "core": """
        AuditError CallFailedError CallProtocol CellLostError CheckpointError
        CheckpointNotFoundError CheckpointSerializationError
        CheckpointerCapabilities CheckpointerProtocol ConfigError
        DuplicateToolError ErrorInfo FlowConflictError FlowError FlowLimitError
        GraphError GuardDeniedError GuardError ImagePart InterruptDeniedError
        InvalidInputError LeaseLostError Message ModelAuthError ModelChunk
        ModelError ModelProtocol ModelResponse ModelResponseError
        ModelThrottledError NodeFailedError PackageError Part PolicyError
        ReplayError Role SandboxError SandboxUnavailableError
        StoreUnavailableError TextPart ThreadBusyError ToolCall ToolError
        ToolExecutionError ToolNotFoundError ToolProtocol ToolResult ToolStatus
        ToolTimeoutError ToolValidationError ToolcellError
    """,
    "sandbox": """
        Artifact ArtifactMade Batch BatchResults CallProgram CellUsage Cleaned
        CodePolicy Connected Connection Displayed DoctorCheck DoctorReport EarlyLauncher
        Enforcer Event ExceptionInfo ExecutionResult FairQueue FileChange FileInfo
        FileWatch Finished Freshness HostCalls ImageInfo Isolation IsolationLevel Job
        JobResult Language Limits Mount Network OnConnection OnDisplay OnOutput
        OnProgress OnStep OpaqueValue Output PackageLayer PackageRules PoolStats
        PortStream Preview Process Programs Resolver RunRequest Sandbox SandboxConfig
        SandboxManager SandboxProcess SandboxSession SandboxWatch Session Status Stderr
        Stdout SyncSession Truncated Usage answer_for build_image call_program
        check_request clean diagnose early_launcher folder_prefix image_names
        list_images list_packages notebook_program open_session pause_deadline
        prune_images prune_packages pull_image returned run save_artifact sweep_folders
    """,
    "cluster": """
        ClusterAdmin ClusterSandbox Directory FixedNodes NodeAgent NodeRecord
        NodeSettings NodeStatus RayDirectory RedisDirectory new_token
    """,
    "guard": """
        ActionGuard AgentPolicy ApprovalHandler ApprovalOutcome ApprovalRecord
        ApprovalReply ApprovalState AuditEntry LimitState audit_of_call audit_page
        ApprovalRequest ApprovalStore Approvals Approve AuditHead AuditLog AuditProblem
        AuditReport AutoApprove Budget CallFacts Clock Condition Decision Grant
        MemoryStore Permit RateLimit Reason Redactor RedisStore Reject Rule SQLiteStore
        ShownRequest
        StandingGrant Store Tried Unit Withdrawn is_same_name load_policies
        AuditPart audit_parts called_by policy_remarks policy_schema verify_audit
        watch_policies
    """,
    "tools": """
        Arguments ArtifactSink CacheHook Call CallCancelledError CircuitBreaker
        CallStage CallWatch CallWatcher CodeExecutor
        CodeResult CodeSession CodeSessions ConcurrentExecutor FolderResultStore
        ForeignDefinition FunctionTool Hook Idempotency Invocation JSONSchemaTool
        LoggingHook OpenAPIDefinition OpenAPIPins OpenAPIToolset PinChange
        MCPCommand MCPDefinition MCPEndpoint MCPPins MCPToolset
        MemoryIdempotency MemoryRecords NumberedRecord ObservedRecords Operation
        Proceed
        ProgramCall Progress Records RedactionHook Reload ResultSizeHook ResultStream
        RetryPolicy RunContext SQLiteIdempotency SQLiteRecords
        SequentialExecutor SessionEnd Snapshot Tool ToolContext ToolExecutionRecord
        ToolExecutor ToolOptions ToolRegistry UsageHour Visible check_checkpointer
        check_model check_tool is_nested_call to_anthropic to_mcp to_openai tool
    """,
    "flow": """
        Answered AutoApproveHandler CallEnded CheckpointInfo Checkpointer Command
        Continue END Emitted End Ended EventStream FLOW_CHECKPOINTER_CHECKS Flow
        FlowEvent FlowLimits FlowResult Graph GraphInterrupted InterruptException
        InterruptHandler InterruptState InterruptValue Interrupted MemoryCheckpointer
        NodeContext REMOVE_ALL_MESSAGES RedisCheckpointer Reducer SQLiteCheckpointer
        START Send SendBatch SendResult StepCommitted StepStarted StoredThread
        StoredThreads TaskEnded TaskStarted ThreadInfo adapt add_messages add_numbers
        agent_turn aggregate_send_results append_list apply_reducers broadcast
        check_flow_checkpointer deep_merge_dict end extract_send_results first_value
        get_reducer goto interrupt is_command is_send is_send_list last_value max_value
        merge_dict min_value normalize_node_output normalize_sends reducer resume_with
        scatter send set_intersection set_union unique_append_list
    """,
    "host": "Host HostConfig main",
    "images": "",
    "providers": "",
}
"""The public names of each room."""
