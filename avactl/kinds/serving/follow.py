"""The shell script that brings models into running pods, and takes those away that are no longer declared."""

from __future__ import annotations

from avactl.kinds.serving.parts.models import MODELS
from avactl.program.lowering.pods import VERIFY

LIST = "/etc/avactl-models"
"""Mount path of the list of models."""
WORK = f"{MODELS}/work"
"""State of the script, on the volume of the models so that they can be renamed into their place."""
READY = f"{WORK}/ready"
"""File that exists while all models serve that did before."""

FOLLOW_SCRIPT = (
    f"set -eu\n{VERIFY}"
    + r"""
umask 0002
for store in $STORES; do
  eval "type=\$RCLONE_CONFIG_${store}_TYPE key=\${RCLONE_CONFIG_${store}_ACCESS_KEY_ID:-}"
  eval "endpoint=\${RCLONE_CONFIG_${store}_ENDPOINT:-} provider=\${RCLONE_CONFIG_${store}_PROVIDER:-}"
  if [ "$type" = s3 ]; then
    [ -n "$key" ] || export "RCLONE_CONFIG_${store}_ENV_AUTH=true"
    [ "$provider" != AWS ] || [ -z "$endpoint" ] || export "RCLONE_CONFIG_${store}_PROVIDER=Other"
  fi
done
mkdir -p "$LIVE" "$WORK/stage" "$WORK/done" "$WORK/gone" "$WORK/config" "$WORK/loaded"

key() { printf %s "$1" | tr / :; }

# Copy what a model lacks, and put it in its place all at once: servers scan the directory.
fetch() {
  while read -r target source what; do
    [ "$(cat "$WORK/done/$(key "$target")" 2>/dev/null)" != "$source" ] || continue
    case "$what" in unnumbered) set -- --exclude '/[0-9]*/**' ;; *) set -- ;; esac
    mkdir -p "$WORK/stage/$target"
    rclone copy --transfers 8 --stats 30s --stats-one-line "$@" "$source" "$WORK/stage/$target" </dev/null || return 1
    # Object stores have no directories: a wrong path is one without objects.
    if [ "$what" = all ] && [ -z "$(ls -A "$WORK/stage/$target")" ]; then
      echo "error: $source has no files" >&2
      return 1
    fi
    verified "$WORK/stage/$target" "$source" </dev/null || return 1
  done <"$1"
}

place() {
  model=$2
  if [ -d "$WORK/stage/$model" ]; then
    if [ -e "$LIVE/$model" ]; then
      for part in "$WORK/stage/$model"/* ; do
        [ -e "$part" ] || continue
        rm -rf "$LIVE/$model/$(basename "$part")"
        mv "$part" "$LIVE/$model/"
      done
      rm -rf "$WORK/stage/$model"
    else
      mv "$WORK/stage/$model" "$LIVE/$model"
    fi
  fi
  while read -r target source what; do printf %s "$source" >"$WORK/done/$(key "$target")"; done <"$1"
  [ ! -f "$LIST/$model.config" ] || cp "$LIST/$model.config" "$WORK/config/$model"
}

# Replace the server's list of models. A model that could not be copied keeps its entry of before.
configure() {
  for entry in "$WORK/config"/*; do
    [ -e "$entry" ] && [ ! -f "$LIST/$(basename "$entry").config" ] && rm "$entry"
  done
  set -- "$LIST"/*.config
  [ -e "$1" ] || return 0
  { echo 'model_config_list {'; cat "$WORK/config"/* 2>/dev/null || true; echo '}'; } >"$WORK/models.config"
  if [ "$(cat "$WORK/models.config")" != "$(cat "$LIVE/../models.config" 2>/dev/null)" ]; then
    mv "$WORK/models.config" "$LIVE/../models.config"
  fi
}

# Delete what is no longer declared, one round after the server was told.
prune() {
  for entry in "$WORK/done"/*; do
    [ -e "$entry" ] || continue
    name=$(basename "$entry") target=$(basename "$entry" | tr : /)
    if cut -d ' ' -f 1 "$LIST"/*.sources | grep -Fqx "$target"; then
      rm -f "$WORK/gone/$name"
    elif [ -e "$WORK/gone/$name" ]; then
      rm -rf "${LIVE:?}/$target" "$entry" "$WORK/gone/$name"
      rmdir "$LIVE/${target%%/*}" 2>/dev/null || true
    else
      : >"$WORK/gone/$name"
    fi
  done
}

# Ready: every version was loaded once after the start, and none that was loaded has stopped serving.
watch() {
  waiting='' down=''
  for path in $(cat "$LIST"/*.health); do
    if rclone copyurl --stdout --retries 1 --low-level-retries 1 --contimeout 2s --timeout 2s \
        "http://127.0.0.1:$PORT$path" >/dev/null 2>&1; then
      : >"$WORK/loaded/$(key "$path")"
    elif [ -e "$WORK/loaded/$(key "$path")" ]; then
      down=$path
    else
      waiting=$path
    fi
  done
  if [ -n "$down" ]; then
    rm -f "$WORK/ready"
  elif [ -z "$waiting" ] || [ -e "$WORK/started" ]; then
    : >"$WORK/started"
    : >"$WORK/ready"
  fi
}

round() {
  failed=''
  for list in "$LIST"/*.sources; do
    name=$(basename "$list" .sources)
    if fetch "$list"; then place "$list" "$name"; else failed="$failed $name"; fi
  done
  configure
  prune
  [ -z "$failed" ] || echo "error: not copied:$failed" >&2
}

if [ -n "${ONCE:-}" ]; then
  rm -f "$WORK/ready"
  round
  [ -z "$failed" ]
  exit
fi
trap 'exit 0' TERM INT
while :; do
  round
  watch
  sleep "${PERIOD:-5}" &
  wait $!
done
"""
)
"""Copies the models of LIST into LIVE with rclone, once (ONCE) or until it is stopped.

LIST has three files for each model: `NAME.sources` with lines of target, source and `all` or `unnumbered`,
`NAME.health` with paths of the server on PORT, and `NAME.config` for servers that read a list. PERIOD is the seconds
between rounds.
"""
