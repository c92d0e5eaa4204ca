package rig

import (
	"encoding/json"
	"testing"
	"time"
)

// Output is what a command of another machine did.
type Output struct {
	T              testing.TB
	What           string // the command
	Code           int    // -1 for a signal
	Stdout, Stderr string
}

// Want fails the test if the command ended otherwise.
func (o Output) Want(code int) Output {
	o.T.Helper()
	if o.Code != code {
		o.T.Fatalf("%s ended with %d, not %d\n%s%s", o.What, o.Code, code, o.Stdout, o.Stderr)
	}
	return o
}

// Answer decodes the --json of a command that must have succeeded.
func Answer[T any](o Output) (v T) {
	o.T.Helper()
	if err := json.Unmarshal([]byte(o.Want(0).Stdout), &v); err != nil {
		o.T.Fatalf("%v\n%s", err, o.Stdout)
	}
	return v
}

// Await waits for a condition that has no event to wait for, and looks again each pause.
func Await(t testing.TB, what string, patience, pause time.Duration, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}
