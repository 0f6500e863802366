"""What runs inside a sandbox: the jail, the kernel, and the Linux calls between them."""
