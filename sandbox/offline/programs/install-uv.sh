#!/bin/sh
# Puts uv where its installer would.
mkdir -p "$HOME/.local/bin"
ln -sf /opt/rollenv/bin/uv "$HOME/.local/bin/uv"
ln -sf /opt/rollenv/bin/uvx "$HOME/.local/bin/uvx"
echo 'export PATH="/opt/rollenv/bin:$HOME/.local/bin:$PATH"' > "$HOME/.local/bin/env"
