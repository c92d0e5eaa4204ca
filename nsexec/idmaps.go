package nsexec

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// ownID tells whether the Worker's id is the caller's own on the host.
func (s *Spec) ownID() bool { return s.UIDMap == nil || s.MapPrograms != nil }

// writeMaps writes the child's id maps from outside, which is the only side
// that may map a range (user_namespaces(7)). The child makes its other
// namespaces meanwhile.
func (l *launching) writeMaps() error {
	s := l.spec
	uids, gids := s.UIDMap, s.GIDMap
	if uids == nil {
		uids = []IDMap{{Inside: s.uid(), Outside: uint32(os.Geteuid()), Count: 1}}
		gids = []IDMap{{Inside: s.gid(), Outside: uint32(os.Getegid()), Count: 1}}
	}
	if s.MapPrograms == nil {
		return mounts.WriteIDMaps("/proc/"+strconv.Itoa(l.child.Pid), uids, gids)
	}
	if err := WriteMapsBy(l.ctx, *s.MapPrograms, l.child.Pid, uids, gids); err != nil {
		return policy.Errorf(policy.CodeIDRangeUnavailable, opLaunch, "the id maps could not be written: %s", err)
	}
	return nil
}

// WriteMapsBy has newuidmap(1) and newgidmap(1) write the maps of a process, both at
// once. Its pid is that of a child of the caller's that nobody has waited for.
func WriteMapsBy(ctx context.Context, programs [2]string, pid int, uids, gids []IDMap) error {
	results := make(chan error, len(programs))
	for i, maps := range [][]IDMap{uids, gids} {
		args := []string{strconv.Itoa(pid)}
		for _, m := range maps {
			for _, n := range []uint32{m.Inside, m.Outside, m.Count} {
				args = append(args, strconv.FormatUint(uint64(n), 10))
			}
		}
		cmd := exec.CommandContext(ctx, programs[i], args...)
		cmd.Env = []string{"LC_ALL=C"}
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%s refuses: %s", filepath.Base(cmd.Path), policy.Printable(strings.TrimSpace(string(out))))
			}
			results <- err
		}()
	}
	first, second := <-results, <-results
	if first != nil {
		return first
	}
	return second
}
