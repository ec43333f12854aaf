#!/usr/bin/env bash
# Plays one receiver and one publisher against the binary:  run.sh POSTRIDER "python3 receive.py" "python3 publish.py" [FORM]
set -euo pipefail
postrider=$1 receive=$2 publish=$3 form=${4:-envelope}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
serving="" receiving=""
trap 'kill $serving $receiving 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
unset DATABASE_URL RABBITMQ_URL REDIS_URL

line() { # the address on the first line of a file that has one
    for _ in $(seq 600); do
        found=$(grep -ohm1 'http://127[^ ]*' "$1" || true)
        [[ -n $found ]] && { echo "$found"; return; }
        sleep 0.1
    done
    echo "nothing listens: $(cat "$1")" >&2
    return 1
}

export WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw EXPECT=2
(cd "$here" && exec $receive) >"$work/received" & receiving=$!
url=$(line "$work/received")
cat >postrider.toml <<TOML
[egress]
allow = ["127.0.0.1", "http"]
[[push]]
name = "example"
url = "$url"
keys = ["shop.order.*"]
form = "$form"
secrets = ["$WEBHOOK_SECRET"]
TOML
"$postrider" serve --listen 127.0.0.1:0 2>"$work/served" & serving=$!
api=$(line "$work/served")
(cd "$here" && $publish "$api")
wait "$receiving"
receiving=""
cat "$work/received"
grep -q "received placed" "$work/received" && grep -q "received paid" "$work/received"
