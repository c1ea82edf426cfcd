"""Decides who may do what, and how much of it."""

from .approval import (
    Answer,
    ApprovalRequest,
    Approve,
    AutoApprove,
    Grant,
    Reject,
    StandingGrant,
)
from .approval_store import ApprovalStore
from .approvals import Approvals
from .audit import AuditLog
from .audit_chain import AuditHead, AuditProblem, AuditReport, verify_audit
from .conditions import Condition
from .decision import Decision, Tried
from .facts import CallFacts
from .file_places import toml_places
from .guard import ActionGuard
from .memory_store import MemoryStore
from .permit import Permit
from .policy import AgentPolicy, Budget, Rule
from .policy_files import load_policies, policy_schema, watch_policies
from .rates import RateLimit
from .redaction import Redactor
from .redis_store import RedisStore
from .sqlite_store import SQLiteStore
from .store import Store

__all__ = [
    "ActionGuard",
    "AgentPolicy",
    "Answer",
    "ApprovalRequest",
    "ApprovalStore",
    "Approvals",
    "Approve",
    "AuditHead",
    "AuditLog",
    "AuditProblem",
    "AuditReport",
    "AutoApprove",
    "Budget",
    "CallFacts",
    "Condition",
    "Decision",
    "Grant",
    "MemoryStore",
    "Permit",
    "RateLimit",
    "Redactor",
    "RedisStore",
    "Reject",
    "Rule",
    "SQLiteStore",
    "StandingGrant",
    "Store",
    "Tried",
    "load_policies",
    "policy_schema",
    "toml_places",
    "verify_audit",
    "watch_policies",
]
