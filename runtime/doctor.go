package runtime

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
)

// severity orders the states of checks.
var severity = map[string]int{"ok": 0, "degraded": 1, "missing": 2}

// Doctor says what this host can do, what that means, and what to change.
func (r *Runtime) Doctor(ctx context.Context) (DoctorReport, error) {
	p, err := r.helper.Probe(ctx)
	if err != nil {
		return DoctorReport{}, err
	}
	rep := DoctorReport{Severity: "ok"}
	rep.Checks = append(rep.Checks, gitCheck(ctx), r.diskCheck(), r.ledgerCheck(ctx))
	for _, c := range p.Checks {
		rep.Checks = append(rep.Checks, DoctorCheck(c))
	}
	rep.Checks = append(rep.Checks, r.authoritiesCheck())
	for _, s := range p.Strategies {
		c := StrategyCheck{Name: s.Name, Possible: s.OK, Chosen: s.Chosen, Reason: s.Reason, Fix: s.Fix}
		for _, m := range s.Costs {
			c.Costs = append(c.Costs, StrategyCost{Files: m.Class, Create: m.Create, Remove: m.Remove, Runs: m.Runs, Taken: m.Taken})
		}
		if why := r.config().External.unconfigured(); why != "" && s.Name == policy.StrategyExternal {
			c.Possible, c.Reason, c.Fix = false, why, externalFix
		}
		rep.Strategies = append(rep.Strategies, c)
	}
	for _, c := range rep.Checks {
		rep.Severity = worse(rep.Severity, c.State)
	}
	return rep, nil
}

func gitCheck(ctx context.Context) DoctorCheck {
	c := DoctorCheck{Name: "git", State: "missing", Message: "git is not installed", Fix: "apt-get install git"}
	out, err := exec.CommandContext(ctx, "git", "--version").Output()
	if err != nil {
		return c
	}
	version := strings.TrimSpace(strings.TrimPrefix(string(out), "git version "))
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && (major > 2 || major == 2 && minor >= 39) {
		return DoctorCheck{Name: "git", State: "ok", Message: "git " + version}
	}
	c.Message = "git " + version + " is older than 2.39"
	return c
}

// authoritiesCheck looks for what secrets as headers take beside a proxy.
func (r *Runtime) authoritiesCheck() DoctorCheck {
	c := DoctorCheck{Name: "egress_secrets", State: "ok", Message: "secrets as headers: their hosts' certificates can be verified"}
	if _, err := r.authorities(); err != nil {
		d := policy.AsDiagnostic(err)
		c.State, c.Message, c.Fix = "degraded", "no secrets as headers: "+d.Message, d.Hint
	}
	return c
}

// lowSpace is what the Runtime root's file system should have left.
const lowSpace = 1 << 30

// disk is the size of the Runtime root's file system, and what is free for its owner.
func (r *Runtime) disk() (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(r.root.Dir.Fd()), &st); err != nil {
		return 0, 0, os.NewSyscallError("fstatfs", err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}

func (r *Runtime) diskCheck() DoctorCheck {
	c := DoctorCheck{Name: "disk", State: "ok"}
	_, free, err := r.disk()
	if err != nil {
		return DoctorCheck{Name: "disk", State: "degraded", Message: "the free space cannot be read: " + err.Error()}
	}
	c.Message = fmt.Sprintf("%d MiB free for the Runtime root", free>>20)
	if free < lowSpace {
		c.State, c.Fix = "degraded", "yoi gc, or move the Runtime root to a larger file system"
	}
	return c
}

func (r *Runtime) ledgerCheck(ctx context.Context) DoctorCheck {
	rep, err := r.LedgerVerify(ctx)
	switch {
	case err != nil:
		return DoctorCheck{Name: "ledger", State: "missing", Message: "the cleanup ledger cannot be read", Fix: "yoi ledger verify"}
	case !rep.OK:
		return DoctorCheck{Name: "ledger", State: "missing", Message: "the cleanup ledger's hash chain is broken", Fix: "yoi ledger verify"}
	}
	records := 0
	for _, s := range rep.Streams {
		records += s.Records
	}
	return DoctorCheck{Name: "ledger", State: "ok", Message: fmt.Sprintf("%d streams, %d records, every hash right", len(rep.Streams), records)}
}

// measured remembers what a tree cost that git or an operator's command made; the
// helper does for its own.
func (r *Runtime) measured(s policy.StrategyName, files int64, took time.Duration) {
	cow.Record(r.root.Dir, cow.Sample{Strategy: s, Files: files, Took: took})
}
