#!/bin/sh
# Backstop's namespace exists with its retention and search attributes. Safe to run again.
# Needs TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE; RETENTION is optional.
set -eu

retention=${RETENTION:-3650d}

operator() {
    noun=$1 verb=$2
    shift 2
    temporal operator "$noun" "$verb" --address "$TEMPORAL_ADDRESS" --namespace "$TEMPORAL_NAMESPACE" "$@"
}

# A frontend takes some seconds to learn of a new namespace.
patiently() {
    tries=30
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 2
    done
}

patiently temporal operator cluster health --address "$TEMPORAL_ADDRESS"
if operator namespace describe >/dev/null 2>&1; then
    operator namespace update --retention "$retention"
else
    operator namespace create --retention "$retention"
fi
patiently operator search-attribute create \
    --name BackstopCluster --type Keyword \
    --name BackstopStage --type Keyword \
    --name BackstopWave --type Keyword \
    --name BackstopOwner --type Keyword \
    --name BackstopUnbacked --type Int
