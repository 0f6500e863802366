"""Programs that run where the untrusted code runs; standard library only, and each file stands alone."""
