"""Decides who may do what, and how much of it."""

from .audit import AuditLog
from .audit_chain import AuditHead, AuditProblem, AuditReport, verify_audit
from .conditions import Condition
from .decision import Decision, Tried
from .facts import CallFacts
from .guard import ActionGuard
from .permit import Permit
from .policy import AgentPolicy, Budget, Rule
from .rates import RateLimit
from .redaction import Redactor
from .store import MemoryStore, Store

__all__ = [
    "ActionGuard",
    "AgentPolicy",
    "AuditHead",
    "AuditLog",
    "AuditProblem",
    "AuditReport",
    "Budget",
    "CallFacts",
    "Condition",
    "Decision",
    "MemoryStore",
    "Permit",
    "RateLimit",
    "Redactor",
    "Rule",
    "Store",
    "Tried",
    "verify_audit",
]
