#!/bin/sh
# Removes from a virtual environment what the agent never imports. The generated models and calls
# of the Kubernetes client, twice over, are 100 MB; its ApiClient, which is all that the agent
# uses, imports them on demand only. Usage: slim-venv.sh VENV
set -eu
cd "$1"/lib/python3*/site-packages

# The asynchronous client and what only that uses.
rm -rf kubernetes/aio aiohttp aiohttp_retry aiosignal aiohappyeyeballs frozenlist multidict \
  propcache yarl
# Generated: a package's __init__ knows the names, a module is imported when its name is used.
for package in kubernetes/client/api kubernetes/client/models; do
  find "$package" -name '*.py' ! -name '__init__.py' -delete
done
# Highlighting of source code, which nothing prints.
find pygments/lexers -name '*.py' ! -name '__init__.py' ! -name '_mapping.py' -delete
# Zones of time: the system has them, and the agent speaks UTC.
rm -rf tzdata
find . -name '*_test.py' -delete
find . -type d \( -name tests -o -name test -o -name __pycache__ \) -prune -exec rm -rf {} +
find . -name '*.pyi' -delete
# Sources of compiled modules.
find . \( -name '*.c' -o -name '*.h' -o -name '*.pyx' -o -name '*.pxd' \) -delete
