//go:build attacktest

package nsexec

import (
	"bytes"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
)

// weakened are the protections that this build leaves out of every launch. The
// pid namespace is not among what can be: the init kills all that it can see.
var weakened = strings.FieldsFunc(os.Getenv("YOI_WEAKEN"), func(r rune) bool { return r == ',' })

func without(protection string) bool { return slices.Contains(weakened, protection) }

// weakenSpec takes away what is data.
func weakenSpec(s *Spec) *Spec {
	if len(weakened) == 0 {
		return s
	}
	w := *s
	if without("filter") {
		w.Filter = nil
	}
	if without("landlock") {
		w.Landlock = nil
	}
	if without("network") {
		w.HostNetwork, w.Network = true, nil
	}
	if without("ids") && w.UIDMap != nil {
		w.UIDMap = []IDMap{{Inside: 0, Outside: 0, Count: ^uint32(0)}}
		w.GIDMap = w.UIDMap
	}
	if without("rlimits") {
		w.Rlimits = nil
	}
	if without("user-limits") {
		w.UserLimits = nil
	}
	w.Plan.Ops = nil
	for _, op := range s.Plan.Ops {
		if op, keep := weakenOp(op); keep {
			w.Plan.Ops = append(w.Plan.Ops, op)
		}
	}
	return &w
}

func weakenOp(op mounts.Op) (mounts.Op, bool) {
	switch o := op.(type) {
	case mounts.Mask:
		return o, !without("masks")
	case mounts.ReadOnlyPath:
		return o, !without("read-only-proc")
	case mounts.Bind:
		o.Attr = weakenAttr(o.Attr)
		return o, true
	case mounts.Overlay:
		o.Attr = weakenAttr(o.Attr)
		return o, true
	case mounts.Tmpfs:
		o.Attr = weakenAttr(o.Attr)
		return o, true
	case mounts.Dev:
		if without("devices") {
			// As a runtime would have it that binds the host's /dev.
			return mounts.Bind{Target: "/dev", Source: mounts.Source{Path: "/dev"}, Recursive: true}, true
		}
	}
	return op, true
}

func weakenAttr(a mounts.Attr) mounts.Attr {
	return mounts.Attr{ReadOnly: a.ReadOnly && !without("read-only"), NoSuid: a.NoSuid && !without("nosuid"),
		NoDev: a.NoDev && !without("nodev"), NoExec: a.NoExec && !without("noexec")}
}

// weaken takes away what is a system call of the launch.
func (b *script) weaken() {
	if len(weakened) == 0 {
		return
	}
	nothing := replay.Step{NR: unix.SYS_GETPID}
	all := ^uint32(0)
	header := replay.Struct(b.Program, capHeader)
	full := replay.Struct(b.Program, [2]unix.CapUserData{{Permitted: all, Effective: all, Inheritable: all}, {Permitted: 0x1ff, Effective: 0x1ff, Inheritable: 0x1ff}})
	pivoted := false
	b.Rewrite(func(s replay.Step) (replay.Step, bool) {
		prctl := func(option uint64) bool { return s.NR == unix.SYS_PRCTL && s.Args[0] == option }
		switch {
		case without("capabilities") && prctl(unix.PR_CAPBSET_DROP) && s.Args[1] == 0:
			return replay.Step{NR: unix.SYS_CAPSET, Args: [6]uint64{replay.Address(header), replay.Address(full)}}, true
		case without("capabilities") && prctl(unix.PR_CAPBSET_DROP):
			return replay.Step{NR: unix.SYS_PRCTL, Args: [6]uint64{unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, s.Args[1] - 1}}, true
		case without("capabilities") && prctl(unix.PR_SET_SECUREBITS):
			s.Args[1] = 4 // NO_SETUID_FIXUP: they outlive the change of ids
			return s, true
		case without("capabilities") && (prctl(unix.PR_CAP_AMBIENT) || s.NR == unix.SYS_CAPSET),
			without("bounding-set") && (prctl(unix.PR_CAPBSET_DROP) || prctl(unix.PR_SET_SECUREBITS) && s.Args[1] == secureBits),
			without("no-new-privs") && prctl(unix.PR_SET_NO_NEW_PRIVS),
			without("keyring") && s.NR == unix.SYS_KEYCTL,
			without("session") && s.NR == unix.SYS_SETSID,
			without("descriptors") && s.NR == unix.SYS_CLOSE_RANGE,
			without("cgroup-namespace") && s.NR == unix.SYS_UNSHARE && s.Args[0] == unix.CLONE_NEWCGROUP:
			return nothing, true
		case without("ipc-namespace") && s.NR == unix.SYS_UNSHARE && s.Args[0]&unix.CLONE_NEWIPC != 0:
			s.Args[0] &^= unix.CLONE_NEWIPC
			return s, true
		case without("hidepid") && s.NR == unix.SYS_FSCONFIG && b.Text(s.Args[2]) == "hidepid":
			s.Args[3] = replay.Address(b.Str("0"))
			return s, true
		case without("ids") && b.spec.UIDMap != nil && (s.NR == unix.SYS_SETRESUID || s.NR == unix.SYS_SETRESGID):
			s.Args = [6]uint64{}
			return s, true
		case without("ids") && s.NR == unix.SYS_FACCESSAT2:
			return nothing, true // the layers' ids are nobody's then: overlays come out read-only
		case without("cwd") && s.NR == unix.SYS_CHDIR:
			// Descriptor 4 is a directory of the host's that the suite's caller left open.
			pivoted = true
			return replay.Step{NR: unix.SYS_FCHDIR, Args: [6]uint64{4}}, true
		case without("cwd") && s.NR == unix.SYS_FCHDIR && pivoted:
			return nothing, true
		case without("groups") && s.NR == unix.SYS_SETGROUPS:
			return nothing, true
		case without("read-only") && s.NR == unix.SYS_MOUNT_SETATTR && s.Args[2] == unix.AT_EMPTY_PATH:
			return nothing, true
		}
		return s, false
	})
}

// weakenInit makes PID 1 an ordinary program that may be read and traced: the
// option of its prctl becomes one that there is not.
func weakenInit(image []byte) {
	if !without("init") {
		return
	}
	for _, code := range [][]byte{{0x48, 0xc7, 0xc7, 4, 0, 0, 0}, {0xbf, 4, 0, 0, 0}} {
		if i := bytes.Index(image, code); i >= 0 {
			image[i+len(code)-4] = 0xff
			return
		}
	}
	panic("the init's prctl was not found")
}

func initMode() uint32 {
	if without("init") {
		return 0o755
	}
	return 0o111
}
