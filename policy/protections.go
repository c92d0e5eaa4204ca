package policy

import "slices"

// Protection is one that a kernel may lack and a policy may require.
type Protection string

const (
	// ProtectLandlock is Landlock's restriction of the Worker's files (ABI 2,
	// Linux 5.19). With the seccomp profile nested, whose Workers mount, it is the
	// restriction of abstract sockets and signals alone (ABI 6, Linux 6.12).
	ProtectLandlock Protection = "landlock"
	// ProtectLimits is a control group with every limit that was asked for of all
	// the Worker's processes together.
	ProtectLimits Protection = "limits"
	// ProtectIDRange is a range of host ids for the Worker's user namespace, which a
	// root helper always has: see IDsRange.
	ProtectIDRange Protection = "id_range"
)

// IDs says which of the host's ids a Worker's user namespace has where the helper is an
// ordinary user.
type IDs string

const (
	IDsSingle IDs = ""      // the user's own
	IDsRange  IDs = "range" // and the user's range of subordinate ids (subuid(5)), where there is one
)

// Protections is what a launch could apply of those.
type Protections struct {
	// LandlockABI is the kernel's version of Landlock that the Worker is confined
	// by; 0 means that it is not.
	LandlockABI int `json:"landlock_abi"`
	// CgroupVersion is 2 or 1 where a control group keeps the limits that were asked
	// for; 0 where none was asked for, or none could be had.
	CgroupVersion int `json:"cgroup_version,omitempty"`
	// IDRange is how many ids of the host's the Worker's user namespace has; 0 stands
	// for one, the helper's own.
	IDRange uint32 `json:"id_range,omitempty"`
}

// ValidateRequired checks a policy's list.
func ValidateRequired(list []Protection) error {
	for i, p := range list {
		if p != ProtectLandlock && p != ProtectLimits && p != ProtectIDRange {
			return Errorf(CodePolicyInvalid, "policy.sandbox", "%q is no protection that can be required", Printable(string(p))).
				WithHint("Use landlock, limits or id_range; the others are always applied.")
		}
		if slices.Contains(list[:i], p) {
			return Errorf(CodePolicyInvalid, "policy.sandbox", "the protection %s is required twice", p)
		}
	}
	return nil
}
