//go:build !cgo

package compile

import (
	"strconv"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// Filter returns the embedded filter of a built-in profile. A program built
// without cgo, such as a client of the daemon that never launches anything, has
// no libseccomp and so compiles no other.
func Filter(p policy.SandboxPolicy) ([]byte, error) {
	if len(p.SeccompAllow) == 0 {
		return seccomp.Filter(p)
	}
	return nil, policy.Errorf(policy.CodeSeccompUnavailable, "seccomp.compile", "this program was built without libseccomp")
}

// Name is the number: names are libseccomp's to know.
func Name(nr int32) string { return strconv.Itoa(int(nr)) }
