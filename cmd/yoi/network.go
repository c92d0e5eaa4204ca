package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

const allowUsage = "let the network reach `HOST:PORT`, or *.DOMAIN:PORT (repeatable; implies --network allowlist)"

func networkFlags(fl *pflag.FlagSet, mode *string, allow *[]string, transparent *bool) {
	fl.StringVar(mode, "network", "", "`MODE` none (default), allowlist or host")
	fl.StringArrayVar(allow, "allow", nil, allowUsage)
	fl.BoolVar(transparent, "transparent", false, "serve --allow under the names themselves too, for programs that know of no proxy")
}

func networkOf(mode string, allow []string, transparent bool) policy.NetworkPolicy {
	p := policy.NetworkPolicy{Mode: policy.NetworkMode(mode), Rules: allow, Transparent: transparent}
	if p.Mode == "" && (len(allow) > 0 || transparent) {
		p.Mode = policy.NetworkAllowlist
	}
	return p
}

func (a *app) workerEgress() *cobra.Command {
	var req runtime.EgressRequest
	c := &cobra.Command{
		Use: "egress ID", Short: "Show what a Worker's network policy let through and refused",
		Long: `Show what a Worker with the network mode allowlist has reached, and what it was
refused and why: what each rule was used for, then the last decisions. Host names
are what the Worker asked for.`,
		Example: "  yoi worker egress wk-0123456789abcdef\n  yoi worker egress --limit 10 --json wk-0123456789abcdef",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.WorkerEgress(cmd.Context(), policy.WorkerID(argv[0]), req)
				if err != nil {
					return err
				}
				return a.showEgress(rep)
			})
		},
	}
	c.Flags().IntVar(&req.Limit, "limit", 0, "the last `N` decisions (default 100)")
	return c
}

func (a *app) showEgress(rep runtime.EgressReport) error {
	if a.json {
		return a.printJSON(rep)
	}
	if rep.Policy.Mode != policy.NetworkAllowlist {
		return a.pairs("network", string(rep.Policy.Mode))
	}
	u := rep.Usage
	if err := a.pairs("network", string(rep.Policy.Mode), "allowed", strconv.FormatUint(u.Allowed, 10), "refused", strconv.FormatUint(u.Refused, 10),
		"sent", size(int64(u.BytesOut)), "received", size(int64(u.BytesIn))); err != nil {
		return err
	}
	if rep.Lost {
		fmt.Fprintln(a.stderr, "yoi: the proxy ended before the Worker, which reaches nothing since")
	}
	rows := make([][]string, 0, len(u.Rules))
	for _, r := range u.Rules {
		rows = append(rows, []string{r.Rule, strconv.FormatUint(r.Allowed, 10), size(int64(r.BytesOut)), size(int64(r.BytesIn))})
	}
	fmt.Fprintln(a.stdout)
	if err := a.table([]string{"RULE", "ALLOWED", "SENT", "RECEIVED"}, rows); err != nil {
		return err
	}
	rows = rows[:0]
	for _, d := range rep.Decisions {
		what := "refused: " + string(d.Reason)
		switch {
		case d.Closed:
			what = fmt.Sprintf("closed after %s, %s sent, %s received", d.Duration.Round(time.Millisecond), size(d.BytesOut), size(d.BytesIn))
		case d.Allowed:
			what = "allowed"
		case !d.Reason.Refusal():
			what = "failed: " + string(d.Reason)
		}
		to := d.Host
		if d.Port != 0 {
			to += ":" + strconv.Itoa(int(d.Port))
		}
		rows = append(rows, []string{d.Time.Local().Format(time.TimeOnly), strconv.FormatUint(d.ID, 10), d.Via, to, d.Address, what})
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return a.table([]string{"TIME", "CONNECTION", "VIA", "TO", "ADDRESS", "DECISION"}, rows)
}
