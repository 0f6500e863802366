#!/bin/sh
# Makes rollenv's own panels anew (data below $ROLLENV_DATA). A panel that has changed is a new panel: give it another name.
set -e
out=${1:-build/panels}
make() { .venv/bin/rollenv panel make "$@" --out "$out"; }

make game:Sokoban-v0-tiny split=test -n 500 --training split=train --draws 20000 --name sokoban-tiny-500 \
  --about "6 x 6 rooms with one box: of rooms that training never sees, however turned."
make ragen:FrozenLake-v0 -n 100 --training same --draws 20000 --name frozenlake-100 \
  --about "Lakes as RAGEN plays them; seeds from 1,000,000,000 on. The environment has no split: training passes over what is alike."
make webshop:mini-easy split=test -n 26 --training split=train --name webshop-easy-26 \
  --about "All instructions of the test split in the small generated shop."
make webshop:mini split=test -n 200 --training split=train --name webshop-mini-200 \
  --about "Instructions of the test split in the generated shop."
make webshop:test-text --training split=train --alike --name webshop-small-500 \
  --about "The first 500 goals of the published order, in the shop of 1,000 products (WebShop, arXiv 2207.01206)." \
  --source "princeton-nlp/WebShop, MIT; product texts were scraped by its authors."
make tools:Shop-v0 tools:Office-v0 tools:Files-v0 tools:SQL-v0 tools:Sheet-v0 split=test -n 40 --training split=train \
  --name tools-200 --about "Generated tasks with tools: 40 each in a shop, an office, files, a database and a sheet."
make tools:Tiny-v0 split=test -n 200 --training split=train --name tools-tiny-200 \
  --about "Orders for tiny models: a number is looked up by name, and the order shipped, held or cancelled."
make math:GSM8K split=test --training split=train --alike --name gsm8k-1319 \
  --about "The whole test split, in its order." --source "openai/grade-school-math, MIT."
make math:GSM8K split=test -n 200 --training split=train --name gsm8k-200 \
  --about "The first 200 questions of the test split that no training question resembles but for its numbers." \
  --source "openai/grade-school-math, MIT."
make eval:MATH500 --alike --name math500 --about "MATH-500 in its order." --source "openai/prm800k, MIT."
make code:HumanEval --alike --name humaneval --about "HumanEval's 164 problems in their order." \
  --source "openai/human-eval, MIT."
make spiel:kuhn_poker -n 6 --name kuhn --about "Kuhn poker for two seats: six deals."
