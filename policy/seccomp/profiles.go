package seccomp

import (
	"slices"

	"yoi.dev/yoi-runtime/policy"
)

// Profile is a complete system-call policy.
type Profile struct {
	Name policy.SeccompProfile `json:"name"`
	Why  string                `json:"-"`
	// Default is the answer to a call that no rule names.
	Default Action `json:"default"`
	// BadABI is the answer to a call of another ABI than the machine's own:
	// i386's int 0x80 and x32 on amd64, whose numbers mean other calls.
	BadABI Action  `json:"bad_abi"`
	Groups []Group `json:"groups"`
}

// Rules is every rule, in the order of the groups.
func (p Profile) Rules() []Rule {
	var rules []Rule
	for _, g := range p.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// everywhere is what no program does without.
var everywhere = []Group{
	fileContents, filePaths, descriptors, ioctlGroup,
	memory, processes, signals, threads, identity, sandboxing, socketCalls,
}

// refusedEverywhere is what no profile allows.
var refusedEverywhere = []Group{oldKernel, noKernelControl, noKeyrings, noExploitHelpers}

// comfort is what strict leaves out.
var comfort = []Group{pipesAndAIO, anonymousFiles, sysvAndMqueue, socketFamilies}

var profiles = []Profile{
	{
		Name: policy.SeccompDefault,
		Why:  "Compilers, language tools, test suites, servers on loopback.",
		Groups: slices.Concat(everywhere, comfort, []Group{plainClone, harmlessPersonality},
			[]Group{noMounts, noForeignNamespaces, noTracing, noHostState}, refusedEverywhere),
	},
	{
		Name: policy.SeccompStrict,
		Why:  "Default without network protocols, IPC of System V, splicing and anonymous programs.",
		Groups: slices.Concat(everywhere, []Group{unixSocketsOnly, plainClone, harmlessPersonality},
			[]Group{noMounts, noForeignNamespaces, noTracing, noHostState}, refusedEverywhere),
	},
	{
		Name: policy.SeccompDebug,
		Why:  "Default and debuggers.",
		Groups: slices.Concat(everywhere, comfort, []Group{plainClone, debugPersonality, tracing},
			[]Group{noMounts, noForeignNamespaces, noHostState}, refusedEverywhere),
	},
	{
		Name: policy.SeccompNested,
		Why:  "Default and sandboxes that stand on user namespaces.",
		Groups: slices.Concat(everywhere, comfort, []Group{namespaces, harmlessPersonality},
			[]Group{noTracing, noHostClock}, refusedEverywhere),
	},
	{
		Name: policy.SeccompAudit,
		Why:  "Default, and each refusal is told: which call, by which program, with which answer, how often (SECCOMP_RET_USER_NOTIF; `yoi worker show`, evidence). To find out what a program needs; a refused call takes longer.",
		Groups: slices.Concat(everywhere, comfort, []Group{plainClone, harmlessPersonality},
			[]Group{noMounts, noForeignNamespaces, noTracing, noHostState}, refusedEverywhere),
	},
}

// Profiles lists the built-in profiles.
func Profiles() []Profile {
	out := slices.Clone(profiles)
	for i := range out {
		out[i] = out[i].complete()
	}
	return out
}

func (p Profile) complete() Profile {
	if p.Default == 0 {
		p.Default = Errno(eNOSYS)
	}
	p.BadABI = KillProcess
	return p
}

// Lookup finds a built-in profile; "" is the default one.
func Lookup(name policy.SeccompProfile) (Profile, error) {
	if name == "" {
		name = policy.SeccompDefault
	}
	for _, p := range profiles {
		if p.Name == name {
			return p.complete(), nil
		}
	}
	return Profile{}, policy.Errorf(policy.CodePolicyInvalid, "seccomp.profile", "%q is no seccomp profile", policy.Printable(string(name)))
}
