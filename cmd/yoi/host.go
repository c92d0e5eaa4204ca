package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// absoluteSource makes a path absolute for a daemon with another working
// directory; URLs stay as they are.
func absoluteSource(s string) (string, error) {
	// Git's rule: a colon before the first slash makes it an address.
	if colon := strings.IndexByte(s, ':'); s == "" || s[0] == '/' || colon >= 0 && !strings.Contains(s[:colon], "/") {
		return s, nil
	}
	return fromHere(s, policy.CodeSourceUnreadable, "yoi.source")
}

// fromHere makes a path absolute, and leaves it as it is otherwise.
func fromHere(s string, code policy.Code, op string) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", policy.Errorf(code, op, "there is no working directory").Because(err)
	}
	return wd + "/" + s, nil
}

// safeOutput is w, and if it is a terminal, w without what could act on it.
func safeOutput(f *os.File) io.Writer {
	if term.IsTerminal(int(f.Fd())) {
		return &terminalWriter{w: f}
	}
	return f
}

// terminalWriter escapes control characters but newline and tab.
type terminalWriter struct {
	w    io.Writer
	rest []byte // the beginning of a character
}

func (t *terminalWriter) Write(b []byte) (int, error) {
	in := append(t.rest, b...)
	var out strings.Builder
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			break
		}
		r, n := utf8.DecodeRune(in)
		if r == '\n' || r == '\t' {
			out.WriteRune(r)
		} else {
			out.WriteString(policy.Printable(string(in[:n])))
		}
		in = in[n:]
	}
	t.rest = append([]byte(nil), in...)
	_, err := io.WriteString(t.w, out.String())
	return len(b), err
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say what this host can do, and what to change",
		Long:    "Say what this host can do.\n\nExit codes: 0 all well; 3 something is degraded; 4 something needed is missing.",
		Example: "  yoi doctor\n  yoi doctor --runtime-root /var/lib/yoi --json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.Doctor(cmd.Context())
				if err != nil {
					return err
				}
				a.code = severityCode[rep.Severity]
				if a.json {
					return a.printJSON(rep)
				}
				return a.showDoctor(rep)
			})
		},
	}
}

// severityCode is the exit code for the worst of several checks.
var severityCode = map[string]int{"ok": 0, "degraded": 3, "missing": 4}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say how the Runtime is now",
		Long: `Say how the Runtime is now: its daemons, disk, cache and Workers, the last cleanup,
and what the ledger holds.

Exit codes: 0 all well; 3 something is degraded; 4 something needed is missing.`,
		Example: "  yoi status\n  yoi --socket /run/yoi/runtimed.sock status --json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				st, err := s.Status(cmd.Context())
				if err != nil {
					return err
				}
				a.code = severityCode[st.Severity]
				if a.json {
					return a.printJSON(st)
				}
				return a.showStatus(st)
			})
		},
	}
}

func (a *app) showStatus(st runtime.RuntimeStatus) error {
	daemon := "none: this command did it itself"
	if st.Daemon {
		daemon = "yoi-runtimed " + st.Version + ", started " + ago(st.StartedAt)
	}
	var workspaces []string
	for _, status := range slices.Sorted(maps.Keys(st.Workspaces)) {
		workspaces = append(workspaces, fmt.Sprintf("%d %s", st.Workspaces[status], status))
	}
	cleanup := "never"
	if c := st.LastCleanup; c != nil {
		cleanup = fmt.Sprintf("%s: %s removed, %s freed", ago(c.At), count(c.Removed, "thing"), size(c.FreedBytes))
	}
	err := a.pairs("state", st.Severity, "runtime", string(st.RuntimeID), "daemon", daemon, "helper", st.Helper,
		"disk", size(st.DiskFreeBytes)+" free of "+size(st.DiskBytes), "workers", fmt.Sprint(st.Workers), "workspaces", cmp.Or(strings.Join(workspaces, ", "), "0"),
		"cache", size(st.CacheBytes)+" of "+count(st.Repositories, "mirror"), "last cleanup", cleanup,
		"ledger", fmt.Sprintf("%d held, %s, %s", st.Held, count(st.OpenIntents, "open intent"), count(st.Leftovers, "leftover")))
	if err != nil || len(st.Problems) == 0 {
		return err
	}
	var rows [][]string
	for _, p := range st.Problems {
		rows = append(rows, []string{p.Name, p.State, p.Message, p.Fix})
	}
	fmt.Fprintln(a.stdout)
	return a.table([]string{"PROBLEM", "STATE", "MEANS", "FIX"}, rows)
}

func (a *app) showDoctor(rep runtime.DoctorReport) error {
	var rows [][]string
	for _, c := range rep.Checks {
		rows = append(rows, []string{c.Name, c.State, c.Message, c.Fix})
	}
	if err := a.table([]string{"CHECK", "STATE", "MEANS", "FIX"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	rows = nil
	for _, s := range rep.Strategies {
		state := "no"
		switch {
		case s.Chosen:
			state = "chosen"
		case s.Possible:
			state = "yes"
		}
		rows = append(rows, []string{string(s.Name), state, costsLine(s.Costs), s.Reason, s.Fix})
	}
	return a.table([]string{"STRATEGY", "POSSIBLE", "MEASURED", "BECAUSE", "FIX"}, rows)
}

// costsLine is what a strategy was measured to cost, shortly: the largest trees.
func costsLine(costs []runtime.StrategyCost) string {
	if len(costs) == 0 {
		return ""
	}
	c := costs[len(costs)-1]
	line := brief(c.Create)
	if c.Remove > 0 {
		line += ", removal " + brief(c.Remove)
	}
	line += " (" + filesOf(c.Files) + ")"
	for _, c := range costs {
		if c.Taken {
			line += "; auto takes it for " + filesOf(c.Files)
		}
	}
	return line
}

// filesOf is a size class for people.
func filesOf(class int64) string { return fmt.Sprintf("%d-%d files", class, 10*class-1) }

// brief shows a duration with two or three digits.
func brief(d time.Duration) string {
	unit := time.Microsecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func (a *app) gcCommand() *cobra.Command {
	var req runtime.GCRequest
	var keep string
	c := &cobra.Command{
		Use: "gc", Short: "Remove leftovers, expired workspaces and unused trees",
		Long: `Remove leftovers, expired workspaces, and trees and caches that no workspace
stands on, the least recently used first, down to the configured sizes, and patches
that nothing was made with for long; let git repack the mirrors. --dry-run lists each thing with what it has of the disk to
itself, and changes nothing; what repacking saves cannot be foretold.`,
		Example: "  yoi gc --dry-run\n  yoi gc --keep-cache 5G",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep != "" {
				n, err := policy.ParseSize(keep)
				if err != nil || int64(n) < 0 {
					return usageError{fmt.Errorf("--keep-cache %q is not a size such as 500M or 5G", keep)}
				}
				req.KeepCacheBytes = int64(n)
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.GC(cmd.Context(), req)
				if err != nil {
					return err
				}
				a.printWarnings(rep.Diagnostics)
				if a.json {
					return a.printJSON(rep)
				}
				if rep.DryRun {
					if err := a.showItems(rep.Items); err != nil {
						return err
					}
				}
				verb, gone := "removed", rep.LeftoversGone
				if rep.DryRun {
					verb, gone = "would remove", rep.LeftoversFound
				}
				fmt.Fprintf(a.stdout, "%s %s, %s, %s, %s and %s of %s (%s)\n", verb, count(len(rep.RemovedTrees), "tree"), count(itemsOf(rep, "shared_cache"), "shared cache"), count(itemsOf(rep, "patch"), "patch"),
					count(len(rep.ExpiredRemoved), "expired workspace"), fmt.Sprint(gone), count(rep.LeftoversFound, "leftover"), size(rep.FreedBytes))
				return nil
			})
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be removed")
	c.Flags().StringVar(&keep, "keep-cache", "", "leave this `SIZE` of unused trees, such as 5G (default: the configuration's)")
	return c
}

func (a *app) eventsCommand() *cobra.Command {
	var req runtime.EventsRequest
	c := &cobra.Command{
		Use: "events", Short: "Print the timeline, oldest first", Example: "  yoi events --owner ws-0123456789abcdef\n  yoi events -f --json",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				var perr error
				err := s.Events(cmd.Context(), req, func(e runtime.Event) bool {
					if a.json {
						perr = a.printLine(e)
					} else {
						_, perr = fmt.Fprintln(a.stdout, eventLine(e))
					}
					return perr == nil
				})
				if err == nil && perr != nil && !brokenPipe(perr) {
					err = perr
				}
				return err
			})
		},
	}
	c.Flags().StringVar(&req.Owner, "owner", "", "only of this workspace, Worker or repository `ID`")
	c.Flags().Int64Var(&req.After, "after", 0, "only after sequence number `N`")
	c.Flags().BoolVarP(&req.Follow, "follow", "f", false, "go on")
	return c
}

// eventLine is an event for people.
func eventLine(e runtime.Event) string {
	line := fmt.Sprintf("%s  %-20s  %s", e.Time.Local().Format("2006-01-02 15:04:05"), policy.Printable(e.Kind), policy.Printable(e.Owner))
	for _, k := range slices.Sorted(maps.Keys(e.Fields)) {
		line += "  " + policy.Printable(k) + "=" + policy.Printable(e.Fields[k])
	}
	return line
}

func (a *app) metricsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "metrics", Short: "Print what the daemon counts, for Prometheus",
		Long:    "Print the daemon's metrics in the text format of Prometheus; docs/metrics.md says what they are and how they get into a Prometheus server.",
		Example: "  yoi --socket /run/yoi/runtimed.sock metrics",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				text, err := s.Metrics(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(string(text))
				}
				_, err = a.stdout.Write(text)
				return err
			})
		},
	}
}

func (a *app) infoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "info", Short: "Identify the Runtime", Example: "  yoi info --json", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				i, err := s.Info(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(i)
				}
				_, daemon := s.(*api.Client)
				return a.pairs("runtime", string(i.RuntimeID), "version", i.Version, "privileged", fmt.Sprint(i.Privileged), "daemon", fmt.Sprint(daemon))
			})
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  yoi version --json", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(map[string]string{"version": runtime.Version})
			}
			fmt.Fprintln(a.stdout, "yoi", runtime.Version)
			return nil
		},
	}
}
