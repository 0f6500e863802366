"""The programs inside a sandbox: the jail, the kernel, and the Linux calls between them."""
