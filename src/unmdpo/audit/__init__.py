"""Two questions to ask about preference data before training on it."""

from unmdpo.audit.strength import StrengthAudit, audit_strength
from unmdpo.audit.support import SupportAudit, audit_support

__all__ = ["StrengthAudit", "SupportAudit", "audit_strength", "audit_support"]
