#!/usr/bin/env bash
# An operator for the action example.com/drain-cache of OperationJobs, with kubectl.
#
#   WORK=COMMAND job-operator.sh [NAMESPACE]    work for the jobs of one namespace, or of all namespaces
#
# For each Pod that an OperationJob has taken off traffic, the script runs `COMMAND NAMESPACE POD`. Then it answers by an
# annotation on the Pod: Succeeded if the exit code is 0, otherwise Failed.
#
# Run one instance. COMMAND must be repeatable: if the script is killed before it has answered, its next start does the
# work again. SIGTERM ends the script after the work that is under way has been done and answered.
set -euo pipefail

action=${ACTION:-example.com/drain-cache}
interval=${INTERVAL:-5}
work=${WORK:?set it to a command that takes a namespace and the name of a Pod}
scope=(--all-namespaces)
[[ $# -eq 0 ]] || scope=(-n "$1")
annotation=operationjob.kusionstack.io/result

# Prints a line for each target to work on: its namespace, the UID of its job, its name, and the UID of its Pod.
targets() {
  # shellcheck disable=SC2016  # $job and $target are variables of the template.
  kubectl get operationjobs "${scope[@]}" -o go-template='
    {{- range .items}}{{$job := .metadata}}{{if eq .spec.action "'"$action"'"}}
    {{- range .status.targetDetails}}{{$target := .}}{{if eq .progress "Processing"}}
    {{- with .extraInfo}}{{if .Allowed}}{{if .ActionEnded}}{{else}}
    {{- $job.namespace}} {{$job.uid}} {{$target.name}} {{.PodUID}}{{"\n"}}
    {{- end}}{{end}}{{end}}{{end}}{{end}}{{end}}{{end}}'
}

# Prints the UID of a Pod, and its last answer.
state() { # NAMESPACE POD
  kubectl get pod "$2" -n "$1" -o jsonpath="{.metadata.uid} {.metadata.annotations.${annotation//./\\.}}"
}

# Because the patch has the UID, the API server refuses to write the answer onto another Pod of this name.
answer() { # NAMESPACE JOB_UID POD POD_UID PROGRESS MESSAGE
  local result
  result=$(printf '{\\"job\\":\\"%s\\",\\"progress\\":\\"%s\\",\\"message\\":\\"%s\\"}' "$2" "$5" "$6")
  kubectl patch pod "$3" -n "$1" --type=merge \
    -p "{\"metadata\":{\"uid\":\"$4\",\"annotations\":{\"$annotation\":\"$result\"}}}"
}

operate() { # NAMESPACE JOB_UID POD POD_UID
  local found code=0
  found=$(state "$1" "$3") || return 0
  # Another Pod of this name, or a Pod that has the answer already.
  [[ $found == "$4 "* && $found != *"$2"* ]] || return 0
  "$work" "$1" "$3" || code=$?
  if [[ $code -eq 0 ]]; then
    answer "$@" Succeeded "" || return 0
  elif $stopping; then
    return 0 # The signal may have ended the work. The next start repeats it.
  else
    answer "$@" Failed "the work ended with exit code $code" || return 0
  fi
  answered[$2/$4]=true
}

# The job removes an answer that it has read. A list that is older than that would show the Pod as not answered.
declare -A answered=()
stopping=false
trap 'stopping=true' TERM INT
until $stopping; do
  mapfile -t found < <(targets)
  for target in "${found[@]}"; do
    read -r namespace job pod uid <<<"$target"
    $stopping || ${answered[$job/$uid]:-false} || operate "$namespace" "$job" "$pod" "$uid"
  done
  # A signal ends `wait` at once, but not `sleep`.
  $stopping || { sleep "$interval" & wait $! || true; }
done
