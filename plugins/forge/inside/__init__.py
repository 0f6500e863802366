"""Programs that run beside untrusted code; each file is standalone and uses only the standard library."""
