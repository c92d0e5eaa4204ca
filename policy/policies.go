package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"
)

// DirtyStatePolicy says whether uncommitted changes of a local source come along.
type DirtyStatePolicy string

const (
	CleanPointOnly          DirtyStatePolicy = "clean_point_only"          // refuse a dirty source; the default
	PatchArtifact           DirtyStatePolicy = "patch_artifact"            // apply a stored diff on the clean point
	CurrentWorktreeSnapshot DirtyStatePolicy = "current_worktree_snapshot" // the working tree as it is now
	DirectLegacyMount       DirtyStatePolicy = "direct_legacy_mount"       // the source itself; debugging only
)

// ParseDirtyStatePolicy reads a policy's name; "" is the default.
func ParseDirtyStatePolicy(s string) (DirtyStatePolicy, error) {
	switch p := DirtyStatePolicy(s); p {
	case "":
		return CleanPointOnly, nil
	case CleanPointOnly, PatchArtifact, CurrentWorktreeSnapshot, DirectLegacyMount:
		return p, nil
	}
	return "", Errorf(CodePolicyInvalid, "policy.dirty_state", "%q is no dirty-state policy", Printable(s)).
		WithHint("Use clean_point_only, patch_artifact, current_worktree_snapshot or direct_legacy_mount.")
}

// CleanupMode says what happens to a workspace when its Worker has ended.
type CleanupMode string

const (
	RemoveOnStop  CleanupMode = "remove_on_stop"
	KeepOnFailure CleanupMode = "keep_on_failure" // remove unless the Worker failed
	KeepFor       CleanupMode = "keep_for"        // keep for a time, then gc removes it
	KeepUntil     CleanupMode = "keep_until_asked"
)

// CleanupPolicy is a mode and, for keep_for, how long.
type CleanupPolicy struct {
	Mode CleanupMode `json:"mode"`
	// For is in nanoseconds in JSON.
	For time.Duration `json:"for,omitempty"`
	// DiscardUncollected allows automatic removal to throw away commits and
	// changes that nobody has collected.
	DiscardUncollected bool `json:"discard_uncollected,omitempty"`
}

// ParseCleanupPolicy reads "remove_on_stop", "keep_on_failure",
// "keep_until_asked" or "keep_for:DURATION".
func ParseCleanupPolicy(s string) (CleanupPolicy, error) {
	mode, arg, _ := strings.Cut(s, ":")
	p := CleanupPolicy{Mode: CleanupMode(mode)}
	if p.Mode == KeepFor {
		d, err := time.ParseDuration(arg)
		if err != nil {
			return p, Errorf(CodePolicyInvalid, "policy.cleanup", "%q is not a duration", Printable(arg))
		}
		p.For = d
	} else if arg != "" {
		return p, Errorf(CodePolicyInvalid, "policy.cleanup", "only keep_for takes a duration")
	}
	return p, p.Validate()
}

// Validate checks the mode and its duration.
func (p CleanupPolicy) Validate() error {
	switch p.Mode {
	case RemoveOnStop, KeepOnFailure, KeepUntil:
		if p.For == 0 {
			return nil
		}
	case KeepFor:
		if p.For > 0 {
			return nil
		}
	}
	return Errorf(CodePolicyInvalid, "policy.cleanup", "%q with duration %s is no cleanup policy", Printable(string(p.Mode)), p.For).
		WithHint("Use remove_on_stop, keep_on_failure, keep_for:DURATION or keep_until_asked.")
}

// Limits bound one Worker. Zero means no limit of ours.
type Limits struct {
	WallClock    time.Duration `json:"wall_clock,omitempty"`    // nanoseconds in JSON; SIGKILL at the end
	OpenFiles    uint64        `json:"open_files,omitempty"`    // RLIMIT_NOFILE
	Processes    uint64        `json:"processes,omitempty"`     // RLIMIT_NPROC of the Worker's uid
	FileSize     uint64        `json:"file_size,omitempty"`     // bytes, RLIMIT_FSIZE
	AddressSpace uint64        `json:"address_space,omitempty"` // bytes, RLIMIT_AS
	StackSize    uint64        `json:"stack_size,omitempty"`    // bytes, RLIMIT_STACK
	CPUTime      time.Duration `json:"cpu_time,omitempty"`      // RLIMIT_CPU, rounded up to seconds
	OOMScoreAdj  int           `json:"oom_score_adj,omitempty"` // 0 to 1000
	Nice         int           `json:"nice,omitempty"`          // 0 to 19

	// These are of what is the Worker's alone beside its workspace; they always hold,
	// and 0 is a default. Files in memory count for memory_max too.
	TmpSize  uint64 `json:"tmp_size,omitempty"`  // bytes in /tmp
	HomeSize uint64 `json:"home_size,omitempty"` // bytes in the home
	ShmSize  uint64 `json:"shm_size,omitempty"`  // bytes in /dev/shm
	LogSize  uint64 `json:"log_size,omitempty"`  // bytes on the disk of stdout, and of stderr

	// These are of all the Worker's processes together, by a control group: where
	// the host has none for us they are not kept, which the Worker's diagnostics
	// tell, unless the policy requires the protection limits.
	MemoryMax  uint64 `json:"memory_max,omitempty"`  // bytes; above them the kernel kills
	MemoryHigh uint64 `json:"memory_high,omitempty"` // bytes; above them the kernel slows down
	SwapMax    uint64 `json:"swap_max,omitempty"`    // bytes beside memory_max
	Tasks      uint64 `json:"tasks,omitempty"`       // processes and threads
	CPUPercent uint64 `json:"cpu_percent,omitempty"` // of one CPU: 150 is one and a half
	CPUWeight  uint64 `json:"cpu_weight,omitempty"`  // 1 to 10000; others have 100
	IOWeight   uint64 `json:"io_weight,omitempty"`   // 1 to 10000; others have 100
	IORead     uint64 `json:"io_read,omitempty"`     // bytes per second from the Runtime root's device
	IOWrite    uint64 `json:"io_write,omitempty"`    // bytes per second to it
}

// The defaults of a Worker's own files. Those of /tmp and the home are less on a host
// of which that would be more than a quarter of the memory.
const (
	DefaultTmpSize = 4 << 30 // a linker's temporary files, a compiler's cache
	DefaultShmSize = 64 << 20
	DefaultLogSize = 64 << 20
	MinLogSize     = 1 << 20
)

// Validate refuses limits under which not even /bin/true would start, and
// values outside the kernel's ranges.
func (l Limits) Validate() error {
	bad := func(field, why string) error {
		return Errorf(CodeLimitsInvalid, "policy.limits", "%s %s", field, why).With("limit", field)
	}
	const most = 1 << 62
	switch {
	case l.WallClock < 0 || (l.WallClock > 0 && l.WallClock < time.Millisecond):
		return bad("wall_clock", "is shorter than a millisecond")
	case l.WallClock > 10*365*24*time.Hour:
		return bad("wall_clock", "is longer than ten years")
	case l.CPUTime < 0 || (l.CPUTime > 0 && l.CPUTime < time.Second):
		return bad("cpu_time", "is shorter than a second")
	case l.OpenFiles != 0 && (l.OpenFiles < 16 || l.OpenFiles > 1<<30):
		return bad("open_files", "is not between 16 and 2^30")
	case l.Processes != 0 && (l.Processes < 4 || l.Processes > 1<<22):
		return bad("processes", "is not between 4 and 4194304")
	case l.AddressSpace != 0 && (l.AddressSpace < 16<<20 || l.AddressSpace > most):
		return bad("address_space", "is less than 16 MiB or too large")
	case l.StackSize != 0 && (l.StackSize < 128<<10 || l.StackSize > most):
		return bad("stack_size", "is less than 128 KiB or too large")
	case l.FileSize > most:
		return bad("file_size", "is too large")
	case l.MemoryMax != 0 && (l.MemoryMax < 4<<20 || l.MemoryMax > most):
		return bad("memory_max", "is less than 4 MiB or too large")
	case l.MemoryHigh != 0 && (l.MemoryHigh < 4<<20 || l.MemoryHigh > most):
		return bad("memory_high", "is less than 4 MiB or too large")
	case l.MemoryMax != 0 && l.MemoryHigh > l.MemoryMax:
		return bad("memory_high", "is more than memory_max")
	case l.SwapMax != 0 && l.MemoryMax == 0:
		return bad("swap_max", "means nothing without memory_max")
	case l.SwapMax > most:
		return bad("swap_max", "is too large")
	case l.Tasks != 0 && (l.Tasks < 4 || l.Tasks > 1<<22):
		return bad("tasks", "is not between 4 and 4194304")
	case l.CPUPercent > 100*8192:
		return bad("cpu_percent", "is more than 8192 CPUs")
	case l.CPUWeight > 10000:
		return bad("cpu_weight", "is not between 1 and 10000")
	case l.IOWeight > 10000:
		return bad("io_weight", "is not between 1 and 10000")
	case l.IORead != 0 && l.IORead < 4096, l.IOWrite != 0 && l.IOWrite < 4096:
		return bad("io_read and io_write", "are at least 4096 bytes per second")
	case l.IORead > most || l.IOWrite > most:
		return bad("io_read and io_write", "are too large")
	case !within(l.TmpSize, 1<<20, most):
		return bad("tmp_size", "is less than 1 MiB or too large")
	case !within(l.HomeSize, 1<<20, most):
		return bad("home_size", "is less than 1 MiB or too large")
	case !within(l.ShmSize, 1<<20, most):
		return bad("shm_size", "is less than 1 MiB or too large")
	case !within(l.LogSize, MinLogSize, 1<<40):
		return bad("log_size", "is not between 1 MiB and 1 TiB")
	case l.OOMScoreAdj < 0 || l.OOMScoreAdj > 1000:
		return bad("oom_score_adj", "is not between 0 and 1000")
	case l.Nice < 0 || l.Nice > 19:
		return bad("nice", "is not between 0 and 19")
	}
	return nil
}

// within tells whether a limit is in a range, or the default.
func within(v, least, most uint64) bool { return v == 0 || v >= least && v <= most }

// SeccompProfile names a built-in system-call profile.
type SeccompProfile string

const (
	SeccompDefault SeccompProfile = "default"
	SeccompStrict  SeccompProfile = "strict"
	SeccompDebug   SeccompProfile = "debug"
	SeccompNested  SeccompProfile = "nested"
	SeccompAudit   SeccompProfile = "audit"
)

// RootProfile says what the sandbox's root file system is made of.
type RootProfile string

const (
	RootSystem  RootProfile = "system"  // the host's /usr, /bin, /lib … read-only, /etc reduced
	RootMinimal RootProfile = "minimal" // no programs: only what is mounted by name
	// RootImage(name), "image:NAME", is an imported image's file system, read-only.
)

// SandboxPolicy is what a Worker may see and do. The zero value after
// Normalize is the default sandbox: system root, no network, default filter.
type SandboxPolicy struct {
	Root    RootProfile    `json:"root"`
	Network NetworkPolicy  `json:"network"`
	Seccomp SeccompProfile `json:"seccomp"`
	// SeccompAllow are names of further calls to allow, checked by libseccomp.
	SeccompAllow []string `json:"seccomp_allow,omitempty"`
	Limits       Limits   `json:"limits,omitzero"`
	// Env is the whole environment beside what the sandbox itself sets; nothing
	// is inherited.
	Env map[string]string `json:"env,omitempty"`
	// Tools, if any are named, are the programs of the host that exist in the
	// sandbox, with what they load, in place of its system directories: see
	// ValidateTools.
	Tools []string `json:"tools,omitempty"`
	// ConfigBundle is a stored directory that Workers have at BundleAt, read-only.
	ConfigBundle BundleDigest `json:"config_bundle,omitempty"`
	// Secrets are what the Worker gets the use of, by handle.
	Secrets []Secret `json:"secrets,omitempty"`
	// Require names protections without which no Worker is launched. Others that
	// not every kernel has are applied where possible, and evidence says which:
	// see Protections. What is not named there is never left out.
	Require []Protection `json:"require,omitempty"`
	// IDs asks for a range of ids where the helper is an ordinary user.
	IDs IDs `json:"ids,omitempty"`
	// ScratchNoExec mounts /scratch noexec.
	ScratchNoExec bool `json:"scratch_noexec,omitempty"`
	// Quota bounds the workspace's disk.
	Quota Quota `json:"quota,omitzero"`
	// BuildCache gives Workers their project's build cache at /cache.
	BuildCache bool `json:"build_cache,omitempty"`
	// PublishCaches trusts the workspace's Workers: what one of them that succeeds
	// leaves in a cache's directory becomes the base of later workspaces.
	PublishCaches bool `json:"publish_caches,omitempty"`
}

// Normalize fills in the defaults.
func (p SandboxPolicy) Normalize() SandboxPolicy {
	if p.Root == "" {
		p.Root = RootSystem
	}
	p.Network = p.Network.normalize()
	if p.Seccomp == "" {
		p.Seccomp = SeccompDefault
	}
	return p
}

// Validate checks every field of a normalized policy.
func (p SandboxPolicy) Validate() error {
	const op = "policy.sandbox"
	p = p.Normalize()
	if err := p.Root.validate(op); err != nil {
		return err
	}
	if err := p.Network.validate(op); err != nil {
		return err
	}
	switch p.Seccomp {
	case SeccompDefault, SeccompStrict, SeccompDebug, SeccompNested, SeccompAudit:
	default:
		return Errorf(CodePolicyInvalid, op, "%q is no seccomp profile", Printable(string(p.Seccomp)))
	}
	for _, name := range p.SeccompAllow {
		if !isCallName(name) {
			return Errorf(CodeSeccompInvalid, op, "%q is not a system call's name", Printable(name))
		}
	}
	if len(p.SeccompAllow) > 64 {
		return Errorf(CodePolicyInvalid, op, "more than 64 further system calls are asked for")
	}
	if err := ValidateRequired(p.Require); err != nil {
		return err
	}
	if p.IDs != IDsSingle && p.IDs != IDsRange {
		return Errorf(CodePolicyInvalid, op, "%q is no choice of ids", Printable(string(p.IDs))).WithHint("Use range, or leave it out.")
	}
	if err := ValidateTools(p.Tools, p.Root); err != nil {
		return err
	}
	if p.ConfigBundle != "" {
		if _, err := p.ConfigBundle.Hex(); err != nil {
			return err
		}
	}
	if err := ValidateSecrets(p.Secrets, p.Network.Mode); err != nil {
		return err
	}
	for _, s := range p.Secrets {
		if _, both := p.Env[s.Target()]; both && s.As == SecretEnv {
			return Errorf(CodePolicyInvalid, op, "the variable %s is set twice, once to the secret %s", Printable(s.Target()), s.Handle)
		}
	}
	if err := p.Limits.Validate(); err != nil {
		return err
	}
	if err := p.Quota.Validate(); err != nil {
		return err
	}
	return validateEnv(p.Env)
}

func isCallName(s string) bool {
	if s == "" || len(s) > 48 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Digest identifies the policy in evidence. Environment values may be private,
// so only the names take part.
func (p SandboxPolicy) Digest() string {
	p = p.Normalize()
	names := make(map[string]string, len(p.Env))
	for k := range p.Env {
		names[k] = ""
	}
	p.Env = names
	slices.Sort(p.SeccompAllow)
	b, err := json.Marshal(p)
	if err != nil { // a struct of strings and numbers always encodes
		panic(err)
	}
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

const (
	maxEnvVars  = 1024
	maxEnvBytes = 1 << 20
	maxArgs     = 4096
	maxArgBytes = 1 << 20 // well under the kernel's 6 MiB for argv and envp together, execve(2)
)

func validateEnv(env map[string]string) error {
	const op = "policy.environment"
	if len(env) > maxEnvVars {
		return Errorf(CodeEnvironmentInvalid, op, "more than %d variables", maxEnvVars)
	}
	total := 0
	for k, v := range env {
		total += len(k) + len(v) + 2
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return Errorf(CodeEnvironmentInvalid, op, "%q is not a variable's name", Printable(k))
		}
		if strings.ContainsRune(v, 0) || len(v) > 128<<10-1 { // MAX_ARG_STRLEN
			return Errorf(CodeEnvironmentInvalid, op, "the value of %q holds a NUL or is over 128 KiB", Printable(k))
		}
	}
	if total > maxEnvBytes {
		return Errorf(CodeEnvironmentInvalid, op, "the environment is larger than %d bytes", maxEnvBytes)
	}
	return nil
}

// ValidateCommand checks argv as execve(2) will take it.
func ValidateCommand(argv []string) error {
	const op = "policy.command"
	if len(argv) == 0 || argv[0] == "" {
		return Errorf(CodeCommandInvalid, op, "no command is given")
	}
	if len(argv) > maxArgs {
		return Errorf(CodeCommandInvalid, op, "more than %d arguments", maxArgs)
	}
	total := 0
	for _, a := range argv {
		total += len(a) + 1
		if strings.ContainsRune(a, 0) || len(a) > 128<<10-1 {
			return Errorf(CodeCommandInvalid, op, "an argument holds a NUL or is over 128 KiB")
		}
	}
	if total > maxArgBytes {
		return Errorf(CodeCommandInvalid, op, "the arguments are larger than %d bytes", maxArgBytes)
	}
	return nil
}

// CheckRelativeCwd is the lexical half of relative_cwd's checks: absolute and
// "..". The other three (symlink escape, missing, not a directory) only the
// kernel can tell, when the workspace is mounted. It returns the clean path.
func CheckRelativeCwd(rel string) (string, error) {
	const op = "policy.relative_cwd"
	switch {
	case rel == "":
		return ".", nil
	case strings.ContainsRune(rel, 0) || len(rel) > 4095:
		return "", Errorf(CodeCwdMissing, op, "relative_cwd holds a NUL or is over 4095 bytes")
	case path.IsAbs(rel):
		return "", Errorf(CodeCwdAbsolute, op, "relative_cwd %q is an absolute path", Printable(rel))
	}
	for _, c := range strings.Split(rel, "/") {
		if c == ".." {
			return "", Errorf(CodeCwdEscape, op, "relative_cwd %q holds ..", Printable(rel))
		}
	}
	return path.Clean(rel), nil
}

// StrategyName names a materialization strategy.
type StrategyName string

const (
	StrategyAuto          StrategyName = "auto"
	StrategyBtrfsSnapshot StrategyName = "btrfs_snapshot"
	StrategyReflink       StrategyName = "reflink"
	StrategyOverlay       StrategyName = "overlay"
	StrategyGitWorktree   StrategyName = "git_worktree"
	StrategyGitSparse     StrategyName = "git_sparse"
	StrategyCopy          StrategyName = "copy"
	StrategyExternal      StrategyName = "external"
	StrategyAPFSClonefile StrategyName = "apfs_clonefile"
	StrategyDirect        StrategyName = "direct_legacy_mount"
)

// Strategies lists the names that a request may carry.
func Strategies() []StrategyName {
	return []StrategyName{StrategyAuto, StrategyBtrfsSnapshot, StrategyReflink, StrategyOverlay, StrategyGitWorktree, StrategyGitSparse, StrategyCopy, StrategyExternal, StrategyAPFSClonefile, StrategyRemoteSnapshot, StrategyDirect}
}

// ParseStrategy reads a strategy's name; "" is auto.
func ParseStrategy(s string) (StrategyName, error) {
	if s == "" {
		return StrategyAuto, nil
	}
	if n := StrategyName(s); slices.Contains(Strategies(), n) {
		return n, nil
	}
	return "", Errorf(CodeStrategyUnknown, "policy.strategy", "%q is no materialization strategy", Printable(s))
}
