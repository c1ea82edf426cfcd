"""Names for other rooms and extensions; they are no promise."""

from .admission.compiled_policy import policy_remarks
from .approvals.records import ApprovalRecord, ApprovalState
from .approvals.types import (
    ApprovalHandler,
    ApprovalOutcome,
    ApprovalReply,
    StandingGrant,
    is_same_name,
)
from .approvals.withdrawal import Withdrawn
from .audit.chain import AuditProblem, AuditReport
from .audit.log_files import AuditPart
from .audit.reader import (
    AuditEntry,
    AuditFound,
    audit_of_call,
    audit_page,
    audit_search,
)
from .audit.redaction import is_secret_name
from .policy.conditions import Condition
from .policy.policy import Rule
from .policy.rate_limit import RateLimit
from .policy.selectors import PRESETS
from .values.amounts import Clock, Unit
from .values.calls import ANY_WAY, Reason, Via
from .values.limit_state import LimitState

__all__ = [
    "ANY_WAY",
    "ApprovalHandler",
    "ApprovalOutcome",
    "ApprovalRecord",
    "ApprovalReply",
    "ApprovalState",
    "AuditEntry",
    "AuditFound",
    "AuditPart",
    "AuditProblem",
    "AuditReport",
    "Clock",
    "Condition",
    "LimitState",
    "PRESETS",
    "RateLimit",
    "Reason",
    "Rule",
    "StandingGrant",
    "Unit",
    "Via",
    "Withdrawn",
    "audit_of_call",
    "audit_page",
    "audit_search",
    "is_same_name",
    "is_secret_name",
    "policy_remarks",
]
