#!/bin/sh
# Builds a virtual environment: tools/make_env.sh FOLDER EXTRAS [PACKAGE==VERSION ...]
#
# Installs this project with EXTRAS (as in `pip install -e .[EXTRAS]`), then the packages that
# follow without their dependencies. FOLDER/.finished is written last: without it, or beside
# FOLDER/.unfinished, the folder does not count as done.
#
# PYTHON names the interpreter to use; else the first that fits of python3.13, ..., python3.
set -eu

folder=$1
extras=$2
shift 2

# 0: fits; otherwise says why not. Runs under any Python, so that an old one can say so too.
check='
import sys
name = sys.argv[1]
version = ".".join(str(part) for part in sys.version_info[:3])
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.stdout.write("%s is Python %s; 3.11, 3.12 or 3.13 is needed\n" % (name, version))
    sys.exit(1)
try:
    import ensurepip
    import venv
except ImportError:
    package = "python%d.%d-venv" % sys.version_info[:2]
    sys.stdout.write("%s (Python %s) has no venv module; on Debian and Ubuntu: "
                     "apt-get install %s\n" % (name, version, package))
    sys.exit(1)
'

python=
found=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    # A command of that name may only be a shim that runs nothing: an empty reason then.
    if reason=$("$candidate" -c "$check" "$candidate" 2>/dev/null); then
        python=$candidate
        break
    fi
    found="$found
  ${reason:-$candidate does not run}"
done
if [ -z "$python" ]; then
    {
        if [ -n "${PYTHON:-}" ]; then
            echo "PYTHON=$PYTHON cannot be used to build $folder:${found:-
  no such command}"
        else
            echo "No Python that fits was found on PATH to build $folder:${found:-
  there is no python at all}"
        fi
        echo "Install Python 3.11, 3.12 or 3.13 with its venv module (on Debian and Ubuntu:"
        echo "apt-get install python3-venv), or name one: make PYTHON=/path/to/python3.12"
    } >&2
    exit 1
fi

# A folder that an earlier run left half-made is built anew. One that someone made by hand, or
# that only has to be brought up to date, is kept if its Python fits and has pip.
if [ -e "$folder/.unfinished" ] || ! "$folder/bin/python" -c "$check" "$folder" >/dev/null 2>&1 ||
    ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "Building $folder with $("$python" --version) ($(command -v "$python"))"
    "$python" -m venv --clear "$folder"
fi
rm -f "$folder/.finished"
touch "$folder/.unfinished"

echo "Installing into $folder; the first time this takes a few minutes"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install -e ".[$extras]"
if [ $# -gt 0 ]; then
    $pip install --no-deps "$@"
fi
rm "$folder/.unfinished"
touch "$folder/.finished"
