#!/usr/bin/env bash
# Fails where a library calls cudaDeviceSynchronize: it waits for all queues of a device, so also
# for collectives that wait for another member, and it hides an event that is missing.
#
#   device_sync.sh LIBRARY...
set -euo pipefail

for library; do
    imports=$(nm -D --undefined-only "$library")
    if ! grep -qw cudaEventSynchronize <<<"$imports"; then
        echo "device_sync: nm tells of no cudaEventSynchronize in $library, which waits by it" >&2
        exit 1
    fi
    if grep -w cudaDeviceSynchronize <<<"$imports" >&2; then
        echo "device_sync: $library calls cudaDeviceSynchronize; wait for an event" >&2
        exit 1
    fi
done
