package helper

import (
	"errors"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestLandlockFor(t *testing.T) {
	required := []policy.Protection{policy.ProtectLandlock}
	for _, test := range []struct {
		name    string
		req     LaunchRequest
		abi     int
		applied int
		refused bool
	}{
		{name: "a kernel without it", abi: 0},
		{name: "one without it that has to have it", req: LaunchRequest{Require: required}, abi: 0, refused: true},
		{name: "too old to rename", req: LaunchRequest{Require: required}, abi: 1, refused: true},
		{name: "old", req: LaunchRequest{Require: required}, abi: 2, applied: 2},
		{name: "new", abi: 7, applied: 7},
		{name: "a Worker that mounts", req: LaunchRequest{Mounts: true}, abi: 5},
		{name: "a required wall that could not hold it", req: LaunchRequest{Mounts: true, Require: required}, abi: 5, refused: true},
		{name: "scopes", req: LaunchRequest{Mounts: true, Require: required}, abi: 6, applied: 6},
	} {
		ll, abi, err := landlockFor(test.req, test.abi)
		if errors.Is(err, policy.CodeKernelFeatureMissing) != test.refused || abi != test.applied || (ll != nil) != (abi != 0) {
			t.Errorf("%s: %+v, ABI %d, %v", test.name, ll, abi, err)
		}
	}
	// A look at a workspace changes nothing in it.
	if ll, _, _ := landlockFor(LaunchRequest{ReadOnly: true}, 7); slices.Contains(ll.Writable, workspaceAt) {
		t.Error("a read-only workspace may be written")
	}
}
