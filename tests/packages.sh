#!/usr/bin/env bash
# Debian's packages of the real services that tests start: Slurm, Prometheus, sshd, chromium. Nothing is started by installing them.
set -euo pipefail

from_npm() { # FOLDER PACKAGE TESTS: what tests in that folder need of npm, which Debian does not have
    local folder="$(dirname "$0")/$1"
    [ ! -f "$folder/node_modules/.package-lock.json" ] || return 0 # npm writes it last
    if command -v npm >/dev/null; then
        echo "packages: $2"
        npm ci --prefix "$folder" --no-audit --no-fund --silent || echo "packages: npm failed, and the tests $3 are skipped" >&2
    else
        echo "packages: without npm the tests $3 are skipped" >&2
    fi
}

from_npm oidc oidc-provider "of logging in" & # the provider that they log in to
from_npm browser axe-core "in a browser" &    # looks at pages for people who cannot see them

needed=(slurmctld slurmd slurmdbd slurm-client munge mariadb-server slurm-wlm-basic-plugins prometheus
    openssh-server openssh-client chromium)
# kubectl comes in several packages, which do not go together.
command -v kubectl >/dev/null || needed+=(kubernetes-client)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
wait # for npm
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "packages: without ${missing[*]} the tests that need them are skipped; as root: apt-get install ${missing[*]}" >&2
    exit 0
fi
echo "packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { apt-get update -q >/dev/null && "${install[@]}" >/dev/null; }
