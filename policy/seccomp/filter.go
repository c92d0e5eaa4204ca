package seccomp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Filter returns the compiled filter of a policy that uses a built-in profile
// as it is: an array of struct sock_filter in the machine's byte order, ready
// for seccomp(2). A policy with further calls needs the compiler: see
// compile.Filter, which falls back on this one.
func Filter(p policy.SandboxPolicy) ([]byte, error) {
	const op = "seccomp.filter"
	profile, err := Lookup(p.Seccomp)
	if err != nil {
		return nil, err
	}
	if len(p.SeccompAllow) > 0 {
		return nil, policy.Errorf(policy.CodeUnsupported, op, "further system calls cannot be compiled by this program").
			With("profile", string(profile.Name)).
			WithHint("Use a built-in profile, or ask yoi-runtimed, which has the compiler.")
	}
	b, err := builtin.ReadFile(builtinDir + string(profile.Name) + ".bpf")
	if err != nil {
		return nil, policy.Errorf(policy.CodeSeccompUnavailable, op, "there is no built-in filter for this processor architecture").
			With("profile", string(profile.Name)).Because(err)
	}
	return b, nil
}

// Digest identifies the filter of p: by the meaning of the profile, not its
// name, so that a cache of compiled filters outlives no change of a profile.
func Digest(p policy.SandboxPolicy) (string, error) {
	profile, err := Lookup(p.Seccomp)
	if err != nil {
		return "", err
	}
	more := slices.Clone(p.SeccompAllow)
	slices.Sort(more)
	return profile.digest(slices.Compact(more))
}

func (p Profile) digest(more []string) (string, error) {
	rules := p.Rules()
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.Call, b.Call) })
	b, err := json.Marshal(struct {
		Default, BadABI Action
		Rules           []Rule
		More            []string
		Notifies        bool `json:",omitempty"`
	}{p.Default, p.BadABI, rules, more, p.Name == policy.SeccompAudit})
	if err != nil {
		return "", err
	}
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:]), nil
}

// Digests is the text of the file DIGESTS beside the embedded filters: which
// profiles they were compiled from.
func Digests() (string, error) {
	var s strings.Builder
	for _, p := range append(Profiles(), Egress()) {
		d, err := p.digest(nil)
		if err != nil {
			return "", err
		}
		s.WriteString(d + "  " + string(p.Name) + "\n")
	}
	return s.String(), nil
}
