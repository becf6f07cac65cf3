#!/bin/sh
# A stand-in for an official image of Python: base.tar in the current directory, a minimal Debian with its own Python.
set -e
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm tree
rm -f tree/var/cache/apt/archives/*.deb tree/var/lib/apt/lists/*_*
tar --directory tree --create --file base.tar .
rm -rf tree
