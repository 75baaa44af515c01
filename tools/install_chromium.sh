#!/bin/sh
# Installs Debian's chromium and its driver where one is missing: tools/install_chromium.sh [--check]
#
# Needs apt-get and the rights to use it. With --check it installs nothing, and fails if one is
# missing.
set -eu

missing=
for command in chromium chromedriver; do
    command -v "$command" >/dev/null 2>&1 || missing="$missing $command"
done
[ -n "$missing" ] || exit 0

if [ "${1:-}" = --check ]; then
    echo "Not on PATH:$missing. On Debian, as root: sh tools/install_chromium.sh" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "Not on PATH:$missing. There is no apt-get to install them with: install chromium and" >&2
    echo "the chromedriver of its version by other means." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Not on PATH:$missing. apt-get needs root; run as root: sh tools/install_chromium.sh" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends chromium chromium-driver
exec sh "$0" --check
