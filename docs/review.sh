#!/bin/sh
# A reviewer's path through a change of access policies.
#
#   docs/review.sh IN_USE PROPOSED [DECISIONS]
#
# IN_USE and PROPOSED are policy folders; DECISIONS is a file of a service's record (docs/records.md). The script ends at
# the first step that fails, with that step's exit code; `sealwire help` lists them. Nothing but MATRIX is written.
set -eu

in_use=$1
proposed=$2
decisions=${3:-}
sealwire=${SEALWIRE:-sealwire}
matrix=${MATRIX:-matrix.html}

step() {
    printf '\n== %s\n' "$1"
}

step "check: do the files say anything wrong or doubtful?"
"$sealwire" policy check "$proposed" --warnings-are-errors

step "fmt: are they laid out, so that the change is about rules?"
"$sealwire" policy fmt "$proposed" --check

step "test: do they decide as expected, and is every rule exercised?"
"$sealwire" policy test "$proposed" --require-coverage

step "matrix: who can call what, for the browser"
"$sealwire" policy matrix "$proposed" --html "$matrix"

step "diff: what can anybody do that they could not, and the other way round?"
"$sealwire" policy diff "$in_use" "$proposed"

if [ -n "$decisions" ]; then
    step "replay: would a call of the last days come out differently?"
    "$sealwire" policy diff "$in_use" "$proposed" --replay "$decisions" --exit-code
fi
