#!/bin/sh
# Puts uv where its installer would: uv itself into an image, and for tests what finds the wheels.
mkdir -p "$HOME/.local/bin"
for name in uv uvx; do
  rm -f "$HOME/.local/bin/$name"
  if [ ! -d /run/rollenv ] && cp "/opt/rollenv/real/$name" "$HOME/.local/bin/$name" 2> /dev/null; then continue; fi
  ln -s "/opt/rollenv/bin/$name" "$HOME/.local/bin/$name"
done
echo 'export PATH="/opt/rollenv/bin:$HOME/.local/bin:$PATH"' > "$HOME/.local/bin/env"
