#!/usr/bin/env bash
# Debian's packages of the real services that tests start: Slurm, Prometheus, sshd. Nothing is started by installing them.
set -euo pipefail
needed=(slurmctld slurmd slurmdbd slurm-client munge mariadb-server slurm-wlm-basic-plugins prometheus
    openssh-server openssh-client)
missing=()
for package in "${needed[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "packages: without ${missing[*]} the tests of Slurm and Prometheus are skipped; as root: apt-get install ${missing[*]}" >&2
    exit 0
fi
echo "packages: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" >/dev/null 2>&1 || { apt-get update -q >/dev/null && "${install[@]}" >/dev/null; }
