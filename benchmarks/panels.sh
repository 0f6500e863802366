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

out=${2:-build/panels/worlds}
make alfworld:generated split=test -n 200 --training split=train --name alfworld-generated-200 \
  --about "Rooms and tasks drawn from the statistics of ALFRED's trials, of goals and receptacles that training never has together."
make alfworld:alfred-seen -n 140 --training split=train --alike --name alfred-seen-140 \
  --about "The first 140 trials of valid_seen, rebuilt: no result on ALFWorld's official games." --source "askforalfred/alfred, MIT."
make alfworld:alfred-unseen -n 134 --training split=train --alike --name alfred-unseen-134 \
  --about "The first 134 trials of valid_unseen, rebuilt: no result on ALFWorld's official games." --source "askforalfred/alfred, MIT."
make textcraft:TextCraft-v0 split=test --training split=train --alike --name textcraft-100 \
  --about "The published validation tasks, of which half ask for the same items as a training task, and 8 ids occur twice." \
  --source "platoon-textcraft 0.3.0, MIT."
make textcraft:TextCraft-v0 split=test -n 48 --training split=train --name textcraft-clean-48 \
  --about "Of the published validation tasks, 52 ask for other items than every training task, 4 of them for those of another one." \
  --source "platoon-textcraft 0.3.0, MIT."
make textcraft:Synth-v0 split=test --training split=train --alike --name textcraft-synth-632 \
  --about "The published validation tasks of TextCraft-Synth." --source "platoon-textcraft 0.3.0, MIT."
make textcraft:Generated-v0 split=test -n 200 --training split=train --alike --name textcraft-generated-200 \
  --about "Generated tasks on generated recipes: sets of items that training never asks for."
