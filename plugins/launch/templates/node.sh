# What every machine runs: RANK is its number, and HEAD the address of the first one.
set -u
cd -- {{folder}} || exit
{{exports}}
mkdir -p -- {{run_dir}}/launch || exit
RUN=$(cd -- {{run_dir}} && pwd)

train() {
    cat > "$RUN/launch/recipe.toml" << 'END OF RECIPE' || exit
{{recipe}}
END OF RECIPE
    [ -e "$RUN/config.json" ] && set -- "$@" --resume
    echo "$BASHPID" > "${PID:-$RUN/launch/pid}"
    exec rollenv train "$RUN/launch/recipe.toml" "$@" run_dir="$RUN"
}

if [ {{nodes}} = 1 ]; then
    train {{changes}}
fi

# Not `ray symmetric-run`: it ends with 0 where Ray does not start, leaves the command behind on SIGTERM,
# and its `ray stop` ends other runs on the machine.
export RAY_ADDRESS="$HEAD:{{port}}" RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$RUN/launch/token"
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # the training has ended
join() {
    # shellcheck disable=SC2086  # the variable holds several options
    exec ray start --block --disable-usage-stats ${RAY_START_OPTIONS:-} "$@" > "$RUN/launch/ray-$RANK.log" 2>&1
}
lost() {
    echo "rollenv: node $RANK ($(hostname)): $1" >&2
    tail -n 20 "$RUN/launch/ray-$RANK.log" >&2
    exit 1
}
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT

if [ "$RANK" != 0 ]; then # joins Ray on the first machine and ends after it
    until (: < "/dev/tcp/$HEAD/{{port}}") 2> /dev/null; do
        [ $SECONDS -lt 900 ] || lost "$HEAD does not answer on port {{port}}"
        sleep 1
    done
    join --address="$RAY_ADDRESS" &
    while kill -0 $! 2> /dev/null; do
        [ -e "$RUN/launch/done" ] && exit 0
        sleep 1
    done
    [ -e "$RUN/launch/done" ] || lost "Ray ended"
    exit 0
fi

rm -f "$RUN/launch/done"
(umask 077 && python -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RUN/launch/token")
join --head --port={{port}} --include-dashboard=false &
RAY=$!
until timeout 100 python -c "import ray; ray.init(); raise SystemExit(sum(n['Alive'] for n in ray.nodes()) < {{nodes}})" 2> /dev/null; do
    kill -0 $RAY 2> /dev/null || lost "Ray ended"
    [ $SECONDS -lt 900 ] || lost "not all of {{nodes}} machines came"
    sleep 1
done
train {{changes}} &
TRAIN=$!
trap 'kill -TERM $TRAIN' TERM
while true; do
    wait $TRAIN
    CODE=$?
    kill -0 $TRAIN 2> /dev/null || break # else a signal ended the wait
done
[ $CODE = 0 ] && touch "$RUN/launch/done"
exit $CODE
