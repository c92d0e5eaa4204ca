package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/host"
)

const usage = `bench measures yoi-runtime beside bubblewrap, runc, git, cp, rm and bbolt (root).

  --rows 1,4   only these rows of the table
  --quick      fewer runs: a look, not a result
  --json       one JSON document instead of the table

The rows:
`

type options struct {
	rows  []int
	quick bool
	json  bool
}

func parse() (options, error) {
	var o options
	var rows string
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		for _, s := range suite {
			fmt.Fprintf(flag.CommandLine.Output(), "  %2d  %s\n", s.row, s.what)
		}
	}
	flag.StringVar(&rows, "rows", "", "")
	flag.BoolVar(&o.quick, "quick", false, "")
	flag.BoolVar(&o.json, "json", false, "")
	flag.Parse()
	for s := range strings.SplitSeq(rows, ",") {
		if s == "" {
			continue
		}
		n, err := strconv.Atoi(s)
		if err != nil || !slices.ContainsFunc(suite, func(x section) bool { return x.row == n }) {
			return o, fmt.Errorf("--rows: there is no row %q", s)
		}
		o.rows = append(o.rows, n)
	}
	return o, nil
}

func main() {
	host.Stage()
	scopeStage()
	o, err := parse()
	if err == nil && os.Geteuid() != 0 {
		err = fmt.Errorf("measuring needs root: loop devices, and sandboxes as the helper makes them")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	testenv.Reexec() // from here in a mount namespace of our own
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	rep, err := measure(ctx, o)
	stop()
	if o.json {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		if jerr := enc.Encode(rep); err == nil {
			err = jerr
		}
	} else {
		rep.print(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// measure runs the chosen sections. One that fails does not take the others
// with it, an interruption does.
func measure(ctx context.Context, o options) (report, error) {
	rep := report{Machine: machine(), Quick: o.quick}
	var failed []string
	for _, s := range suite {
		if len(o.rows) > 0 && !slices.Contains(o.rows, s.row) {
			continue
		}
		fmt.Fprintf(os.Stderr, "row %d: %s\n", s.row, s.what)
		rows, facts, err := inRoom(ctx, o.quick, s)
		rep.Rows = append(rep.Rows, rows...)
		rep.Facts = append(rep.Facts, facts...)
		if ctx.Err() != nil {
			return rep, fmt.Errorf("interrupted")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "row %d failed: %v\n", s.row, err)
			failed = append(failed, strconv.Itoa(s.row))
		}
	}
	if len(failed) > 0 {
		return rep, fmt.Errorf("not measured: row %s", strings.Join(failed, ", "))
	}
	return rep, nil
}
