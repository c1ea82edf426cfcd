"""Decides who may do what, and how much of it."""

from .admission.guard import ActionGuard
from .admission.permit import Permit
from .admission.reload import watch_policies
from .approvals.approvals import Approvals
from .approvals.shown import ShownRequest
from .approvals.store import ApprovalStore
from .approvals.types import ApprovalRequest, Approve, AutoApprove, Grant, Reject
from .audit.chain import AuditHead, verify_audit
from .audit.log import AuditLog
from .audit.log_files import audit_parts
from .audit.redaction import Redactor
from .policy.files import load_policies, policy_schema
from .policy.policy import AgentPolicy, Budget
from .stores.base import Store
from .stores.memory import MemoryStore
from .stores.redis import RedisStore
from .stores.sqlite import SQLiteStore
from .values.caller import called_by
from .values.calls import CallFacts, Decision, Tried

__all__ = [
    "ActionGuard",
    "AgentPolicy",
    "ApprovalRequest",
    "ApprovalStore",
    "Approvals",
    "Approve",
    "AuditHead",
    "AuditLog",
    "AutoApprove",
    "Budget",
    "CallFacts",
    "Decision",
    "Grant",
    "MemoryStore",
    "Permit",
    "Redactor",
    "RedisStore",
    "Reject",
    "SQLiteStore",
    "ShownRequest",
    "Store",
    "Tried",
    "audit_parts",
    "called_by",
    "load_policies",
    "policy_schema",
    "verify_audit",
    "watch_policies",
]
