package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// userRange is an ordinary user's range of subordinate ids as maps of a sandbox, with
// the programs that may write them: newuidmap(1), newgidmap(1). The Worker is the user
// all the same: on an ordinary user's disk no files of other ids could be made. What
// it does not have any more is the user's supplementary groups, which only a user
// namespace with a range lets it leave (user_namespaces(7)).
type userRange struct {
	uids, gids []nsexec.IDMap
	programs   [2]string
}

// takeUserRange has the Worker's user namespace have the user's range, if the policy
// asks for it.
func (a *attempt) takeUserRange(ctx context.Context) error {
	required := slices.Contains(a.req.Require, policy.ProtectIDRange)
	if a.req.IDs != policy.IDsRange && !required {
		return nil
	}
	r, err := a.l.subordinate(ctx)
	if err == nil {
		a.userIDs, a.protections.IDRange = r, countOf(r.uids)
		return nil
	}
	if required {
		return err
	}
	w := *policy.AsDiagnostic(err)
	w.Severity = policy.SeverityWarning
	a.warnings = append(a.warnings, w)
	return nil
}

func countOf(ms []nsexec.IDMap) (n uint32) {
	for _, m := range ms {
		n += m.Count
	}
	return n
}

// subordinate finds the user's range, and tries it once.
func (l *Local) subordinate(ctx context.Context) (*userRange, error) {
	l.userOnce.Do(func() {
		if l.userRange, l.userErr = findUserRange(); l.userErr == nil {
			l.userErr = l.userRange.try(context.WithoutCancel(ctx))
		}
	})
	if l.userErr != nil {
		return nil, policy.Errorf(policy.CodeIDRangeUnavailable, "helper.ids", "the worker has one id of the host's: %s", l.userErr)
	}
	return l.userRange, nil
}

func findUserRange() (*userRange, error) {
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil {
		return nil, errors.New("the user is not in /etc/passwd")
	}
	r := &userRange{}
	for i, f := range []struct {
		program, file string
		own           int
		ids           *[]nsexec.IDMap
	}{{"newuidmap", "/etc/subuid", os.Getuid(), &r.uids}, {"newgidmap", "/etc/subgid", os.Getgid(), &r.gids}} {
		if r.programs[i], err = exec.LookPath(f.program); err != nil {
			return nil, fmt.Errorf("%s is not installed", f.program)
		}
		b, err := os.ReadFile(f.file)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read", f.file)
		}
		base, count := subIDs(string(b), u.Username, u.Uid)
		if count == 0 {
			return nil, fmt.Errorf("%s has no range for the user", f.file)
		}
		*f.ids = mapsAround(uint32(f.own), base, count)
	}
	return r, nil
}

// subIDs is the largest range of a user in a file as subuid(5) has it.
func subIDs(text, name, uid string) (base, count uint32) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != name && f[0] != uid {
			continue
		}
		from, err := strconv.ParseUint(f[1], 10, 32)
		n, nerr := strconv.ParseUint(f[2], 10, 32)
		if err != nil || nerr != nil || from == 0 || from+n > 1<<32-1 {
			continue
		}
		if n = min(n, rangeSize-1); uint32(n) > count {
			base, count = uint32(from), uint32(n)
		}
	}
	return base, count
}

// mapsAround maps the Worker's id to the user's own, and those beside it to the range.
func mapsAround(own, base, count uint32) []nsexec.IDMap {
	below := min(count, workerID)
	ms := []nsexec.IDMap{{Inside: 0, Outside: base, Count: below}, {Inside: workerID, Outside: own, Count: 1}}
	if count > below {
		ms = append(ms, nsexec.IDMap{Inside: workerID + 1, Outside: base + below, Count: count - below})
	}
	return ms
}

// try writes the maps of a user namespace that nobody uses: the programs may refuse,
// or have lost what lets them (their mode, or a file system with nosuid).
func (r *userRange) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/cat") // waits for its input, and ends with us
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return errors.New("a user namespace cannot be made")
	}
	err = nsexec.WriteMapsBy(ctx, r.programs, cmd.Process.Pid, r.uids, r.gids)
	in.Close()
	_ = cmd.Wait() // what became of it says nothing
	return err
}

// userMaps are the maps of a live Worker's user namespace, nil if it has one id.
func (l *Local) userMaps(init *os.File) (uids, gids []nsexec.IDMap, err error) {
	pid, err := nsexec.PidOf(init)
	var b []byte
	if err == nil {
		b, err = os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	}
	if err != nil {
		return nil, nil, notLooked("helper.enter", "", init, err)
	}
	if strings.Count(string(b), "\n") < 2 {
		return nil, nil, nil
	}
	// Which ids they are the namespace knows.
	m := []nsexec.IDMap{{Inside: 0, Outside: 0, Count: rangeSize}}
	return m, m, nil
}

// idRangeCheck says what ids Workers can have.
func (l *Local) idRangeCheck(ctx context.Context) Check {
	c := Check{Name: "id_range", State: "ok"}
	if l.privileged {
		c.Message = fmt.Sprintf("%d ids of its own for each worker", rangeSize)
		return c
	}
	r, err := l.subordinate(ctx)
	if err != nil {
		// A sandbox with one id is a whole one.
		d := policy.AsDiagnostic(err)
		c.Message, c.Fix = d.Message, d.Hint
		return c
	}
	c.Message = fmt.Sprintf("%d ids by newuidmap, for policies with ids = \"range\"", countOf(r.uids))
	return c
}
