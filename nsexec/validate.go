package nsexec

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

const opLaunch = "nsexec.launch"

func (s *Spec) uid() uint32 {
	if s.UID == 0 {
		return DefaultID
	}
	return s.UID
}

func (s *Spec) gid() uint32 {
	if s.GID == 0 {
		return DefaultID
	}
	return s.GID
}

// validate refuses what could not be started as asked.
func (s *Spec) validate() error {
	bad := func(code policy.Code, format string, args ...any) error {
		return policy.Errorf(code, opLaunch, format, args...)
	}
	if err := policy.ValidateCommand(s.Argv); err != nil {
		return err
	}
	for _, kv := range s.Env {
		if i := strings.IndexByte(kv, '='); i < 1 || strings.ContainsRune(kv, 0) || len(kv) >= 128<<10 {
			return bad(policy.CodeEnvironmentInvalid, "an environment entry is not NAME=VALUE")
		}
	}
	for _, v := range s.SecretEnv {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || bytes.IndexByte(v.Value, 0) >= 0 || len(v.Name)+len(v.Value) >= 128<<10-1 {
			return bad(policy.CodeEnvironmentInvalid, "a secret variable is not NAME=VALUE")
		}
	}
	if err := s.Plan.Validate(); err != nil {
		return err
	}
	switch {
	case s.CwdRoot != "" && (s.CwdRoot[0] != '/' || path.Clean(s.CwdRoot) != s.CwdRoot || strings.ContainsRune(s.CwdRoot, 0)):
		return bad(policy.CodePolicyInvalid, "the working directory's root is not a clean absolute path")
	case (s.UIDMap == nil) != (s.GIDMap == nil):
		return bad(policy.CodePolicyInvalid, "only one of the two id maps is given")
	case len(s.Filter)%8 != 0 || len(s.Filter)/8 > 4096: // BPF_MAXINSNS
		return bad(policy.CodeSeccompInvalid, "the system call filter is not a whole program of at most 4096 instructions")
	case s.Notify && len(s.Filter) == 0:
		return bad(policy.CodeSeccompInvalid, "notifications need a filter")
	case len(s.Hostname) > 64 || strings.ContainsRune(s.Hostname, 0):
		return bad(policy.CodePolicyInvalid, "the host name is longer than 64 bytes")
	case len(s.Hold) > maxHold:
		return bad(policy.CodePolicyInvalid, "more than %d descriptors are to be held", maxHold)
	case len(s.Tasks) > maxTasks:
		return bad(policy.CodePolicyInvalid, "more than %d control groups are to be entered", maxTasks)
	case s.Network != nil && s.HostNetwork:
		return bad(policy.CodePolicyInvalid, "both the host's network and another one are asked for")
	case s.DieWith != nil && s.DieWithParent:
		return bad(policy.CodePolicyInvalid, "the sandbox is to end with two processes")
	case len(s.Listen) > maxListen:
		return bad(policy.CodePolicyInvalid, "more than %d sockets are to be opened", maxListen)
	case (len(s.Listen) > 0) != (s.Listening != nil) || (len(s.Listen) > 0 && s.HostNetwork):
		return bad(policy.CodePolicyInvalid, "sockets need a network of the sandbox's own, and somebody to take them")
	case slices.ContainsFunc(s.Listen, func(l Listen) bool { return !l.Addr.Addr().Is4() || l.Addr.Port() == 0 }):
		return bad(policy.CodePolicyInvalid, "a socket's address is no IPv4 address with a port")
	case s.Umask&^0o777 != 0:
		return bad(policy.CodePolicyInvalid, "the umask has bits beyond 0777")
	case s.WallClock < 0:
		return bad(policy.CodeLimitsInvalid, "the wall clock limit is negative")
	case s.Terminal && ptmx(s.Plan) == "":
		return bad(policy.CodePolicyInvalid, "a terminal needs a devpts in the mount plan")
	case s.Resident && (!s.Terminal || s.Logs.Dir == (mounts.Source{}) || s.Logs.Stdout == ""):
		return bad(policy.CodePolicyInvalid, "a resident terminal is one with a log")
	case s.OOMScoreAdj < -1000 || s.OOMScoreAdj > 1000:
		return bad(policy.CodeLimitsInvalid, "the OOM score adjustment is not between -1000 and 1000")
	case len(s.UserLimits) > 0 && procOf(s.Plan) == "":
		return bad(policy.CodePolicyInvalid, "limits of the sandbox's user need a proc in the mount plan")
	case slices.ContainsFunc(s.UserLimits, func(l UserLimit) bool {
		return l.Max < 0 || strings.Trim(l.Name, "abcdefghijklmnopqrstuvwxyz_") != "" || l.Name == ""
	}):
		return bad(policy.CodeLimitsInvalid, "a limit of the sandbox's user is negative, or of nothing that has a name")
	case s.OOMScoreAdj != 0 && procOf(s.Plan) == "":
		return bad(policy.CodePolicyInvalid, "an OOM score adjustment needs a proc in the mount plan")
	}
	if err := s.validateMaps(); err != nil {
		return err
	}
	if err := s.validateLogs(); err != nil {
		return err
	}
	_, err := policy.CheckRelativeCwd(s.RelativeCwd)
	return err
}

func (s *Spec) validateMaps() error {
	if s.UIDMap == nil {
		return nil
	}
	if !mapped(s.UIDMap, s.uid()) || !mapped(s.GIDMap, s.gid()) {
		return policy.Errorf(policy.CodePolicyInvalid, opLaunch, "the Worker's ids are not in the id maps")
	}
	return nil
}

func (s *Spec) validateLogs() error {
	l := s.Logs
	if l.Dir == (mounts.Source{}) {
		return nil
	}
	if l.Limit != 0 && (l.Limit < MinLog || l.Limit > 1<<62) {
		return policy.Errorf(policy.CodeLimitsInvalid, opLaunch, "a log's limit is less than 1 MiB, or too large")
	}
	for _, n := range []string{l.Stdout, l.Stderr} {
		if n == "." || n == ".." || strings.ContainsAny(n, "/\x00") || len(n) > unix.NAME_MAX {
			return policy.Errorf(policy.CodePolicyInvalid, opLaunch, "a log file's name is not a plain name")
		}
	}
	return nil
}

func mapped(ms []IDMap, id uint32) bool { return outside(ms, id) >= 0 }
