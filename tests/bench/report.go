package main

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// row is one line of the table: two sides, one ratio, one target.
type row struct {
	Row     int    `json:"row"`
	What    string `json:"what"`
	Against string `json:"against"`
	// Ratio is ours over theirs of the medians. For times the target is at most,
	// for rates (AtLeast) at least; 0 is none.
	Ratio   float64 `json:"ratio"`
	Target  float64 `json:"target"`
	AtLeast bool    `json:"at_least,omitempty"`
	Met     bool    `json:"met"`
	Own     float64 `json:"own"`
	Peer    float64 `json:"peer"`
	Unit    string  `json:"unit"`
	Runs    int     `json:"runs"`
}

// fact is a number without a target.
type fact struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

type report struct {
	Machine map[string]string `json:"machine"`
	Quick   bool              `json:"quick,omitempty"`
	Rows    []row             `json:"rows"`
	Facts   []fact            `json:"facts,omitempty"`
}

// times adds a row of two sets of durations. A target of 0 is none: the ratio is reported.
func (r *room) times(what, against string, target float64, own, peer []time.Duration) {
	o, p := milliseconds(median(own)), milliseconds(median(peer))
	r.add(row{What: what, Against: against, Target: target, Ratio: o / p, Met: target == 0 || o/p <= target, Own: o, Peer: p, Unit: "ms", Runs: len(own)})
}

// rates adds a row of two sets of rates per second.
func (r *room) rates(what, against string, target float64, own, peer []float64) {
	o, p := median(own), median(peer)
	r.add(row{What: what, Against: against, Target: target, AtLeast: true, Ratio: o / p, Met: o/p >= target, Own: o, Peer: p, Unit: "/s", Runs: len(own)})
}

func (r *room) add(x row) { r.rows = append(r.rows, x) }

func (r *room) fact(what string, value float64, unit string) {
	r.facts = append(r.facts, fact{what, value, unit})
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (rep report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %s CPUs, %s, %s, %s, %s\n", rep.Machine["kernel"], rep.Machine["cpus"],
		rep.Machine["git"], rep.Machine["bwrap"], rep.Machine["runc"], rep.Machine["go"])
	if rep.Quick {
		fmt.Fprintln(w, "a quick look: too few runs for a result")
	}
	what, against := len("what"), len("against")
	for _, x := range rep.Rows {
		what, against = max(what, len(x.What)), max(against, len(x.Against))
	}
	fmt.Fprintf(w, "\n    %-*s  %-*s  %8s  %8s  %-4s  %10s  %10s  runs\n", what, "what", against, "against", "ratio", "target", "met", "ours", "theirs")
	for _, x := range rep.Rows {
		met, bound := "yes", "≤"
		if !x.Met {
			met = "NO"
		}
		if x.AtLeast {
			bound = "≥"
		}
		bound += fmt.Sprintf(" %.4g", x.Target)
		if x.Target == 0 {
			met, bound = "-", "none"
		}
		fmt.Fprintf(w, "%2d  %-*s  %-*s  %8.3f  %8s  %-4s  %10s  %10s  %4d\n", x.Row, what, x.What, against, x.Against,
			x.Ratio, bound, met, number(x.Own)+" "+x.Unit, number(x.Peer)+" "+x.Unit, x.Runs)
	}
	if len(rep.Facts) > 0 {
		fmt.Fprintln(w)
	}
	for _, f := range rep.Facts {
		fmt.Fprintf(w, "    %s: %s %s\n", f.What, number(f.Value), f.Unit)
	}
}

// number shows three significant digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func machine() map[string]string {
	var u unix.Utsname
	_ = unix.Uname(&u) // it cannot fail with a valid pointer
	m := map[string]string{
		"kernel": "Linux " + unix.ByteSliceToString(u.Release[:]),
		"cpus":   fmt.Sprint(runtime.NumCPU()), "go": runtime.Version(),
	}
	for name, args := range map[string][]string{"git": {"git", "--version"}, "bwrap": {"bwrap", "--version"}, "runc": {"runc", "--version"}} {
		out, err := exec.Command(args[0], args[1:]...).Output()
		if err != nil {
			m[name] = "no " + name
			continue
		}
		m[name], _, _ = strings.Cut(string(out), "\n")
	}
	return m
}
