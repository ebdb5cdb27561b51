"""headway."""
from headway import _form
