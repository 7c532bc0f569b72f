#!/usr/bin/env bash
# An operation on one Pod through the lifecycle, with kubectl.
#
#   operation.sh begin   NAMESPACE POD ID    ask for the operation, and wait until the Pod is off traffic
#   operation.sh request NAMESPACE POD ID    ask for the operation, and do not wait
#   operation.sh finish  NAMESPACE POD ID    say that the work is done, and wait until the Pod serves again
#   operation.sh undo    NAMESPACE POD ID    cancel the operation in any phase
#
# The ID names the operation; the script uses it as the type of the operation too.
set -euo pipefail

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

[[ $# -eq 4 ]] || usage
verb=$1 namespace=$2 pod=pod/${3#pod/} id=$4
timeout=${TIMEOUT:-10m}
domain=podopslifecycle.kusionstack.io

label() {
  kubectl label "$pod" -n "$namespace" --overwrite "$@"
}

wait_for() {
  kubectl wait "$pod" -n "$namespace" --timeout="$timeout" --for="$1"
}

request() {
  # Both labels in one write. The value of the first is a time in nanoseconds.
  label "operating.$domain/$id=$(date +%s)000000000" "operation-type.$domain/$id=$id"
}

case $verb in
  request)
    request
    ;;
  begin)
    request
    wait_for "jsonpath={.metadata.labels.operate\\.podopslifecycle\\.kusionstack\\.io/${id//./\\.}}"
    # The kubelet reports the closed readiness gate a moment later. Do not work on the Pod before.
    wait_for condition=Ready=False
    ;;
  finish)
    label "operating.$domain/$id-"
    wait_for 'jsonpath={.metadata.labels.podopslifecycle\.kusionstack\.io/service-available}'
    ;;
  undo)
    label "undo-operation-type.$domain/$id=$id"
    ;;
  *)
    usage
    ;;
esac
