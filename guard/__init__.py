"""Decides who may do what, and how much of it."""

from .admission.guard import ActionGuard
from .admission.permit import Permit
from .admission.reload import watch_policies
from .approvals.approvals import Approvals
from .approvals.records import ApprovalRecord, ApprovalState
from .approvals.shown import ShownRequest
from .approvals.store import ApprovalStore
from .approvals.types import (
    ApprovalHandler,
    ApprovalOutcome,
    ApprovalReply,
    ApprovalRequest,
    Approve,
    AutoApprove,
    Grant,
    Reject,
    StandingGrant,
    is_same_name,
)
from .approvals.withdrawal import Withdrawn
from .audit.chain import AuditHead, AuditProblem, AuditReport, verify_audit
from .audit.log import AuditLog
from .audit.parts import AuditPart, audit_parts
from .audit.reader import AuditEntry, audit_of_call, audit_page
from .audit.redaction import Redactor
from .policy.conditions import Condition
from .policy.files import load_policies, policy_schema
from .policy.policy import AgentPolicy, Budget, Rule
from .policy.rate_limit import RateLimit
from .policy.remarks import policy_remarks
from .stores.base import Store
from .stores.memory import MemoryStore
from .stores.redis import RedisStore
from .stores.sqlite import SQLiteStore
from .values.amounts import Unit
from .values.call_facts import CallFacts
from .values.caller import called_by
from .values.clock import Clock
from .values.decision import Decision, Reason, Tried
from .values.limit_state import LimitState

__all__ = [
    "ActionGuard",
    "AgentPolicy",
    "ApprovalHandler",
    "ApprovalOutcome",
    "ApprovalRecord",
    "ApprovalReply",
    "ApprovalRequest",
    "ApprovalState",
    "ApprovalStore",
    "Approvals",
    "Approve",
    "AuditEntry",
    "AuditHead",
    "AuditLog",
    "AuditPart",
    "AuditProblem",
    "AuditReport",
    "AutoApprove",
    "Budget",
    "CallFacts",
    "Clock",
    "Condition",
    "Decision",
    "Grant",
    "LimitState",
    "MemoryStore",
    "Permit",
    "RateLimit",
    "Reason",
    "Redactor",
    "RedisStore",
    "Reject",
    "Rule",
    "SQLiteStore",
    "ShownRequest",
    "StandingGrant",
    "Store",
    "Tried",
    "Unit",
    "Withdrawn",
    "audit_of_call",
    "audit_page",
    "audit_parts",
    "called_by",
    "is_same_name",
    "load_policies",
    "policy_remarks",
    "policy_schema",
    "verify_audit",
    "watch_policies",
]
