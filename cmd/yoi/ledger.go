package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) ledgerCommand() *cobra.Command {
	return groupCommand("ledger", "Read, verify and replay the cleanup ledger", "  yoi ledger show --held\n  yoi ledger verify",
		a.ledgerShow(), a.ledgerVerify(), a.ledgerReplay())
}

func (a *app) ledgerShow() *cobra.Command {
	var req runtime.LedgerRequest
	c := &cobra.Command{
		Use: "show", Short: "Print the ledger's records, or what is held", Example: "  yoi ledger show --held\n  yoi ledger show --owner ws-0123456789abcdef --json",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				var rows [][]string
				var perr error
				err := s.LedgerRecords(cmd.Context(), req, func(r runtime.LedgerRecord) bool {
					if a.json {
						perr = a.printLine(r)
						return perr == nil
					}
					rows = append(rows, []string{r.Stream, fmt.Sprint(r.Seq), r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Kind, r.Type, r.Owner, r.Path, r.Resource})
					return true
				})
				if err != nil || a.json {
					if brokenPipe(perr) {
						perr = nil
					}
					if err == nil {
						err = perr
					}
					return err
				}
				return a.table([]string{"STREAM", "SEQ", "TIME", "RECORD", "TYPE", "OWNER", "PATH", "RESOURCE"}, rows)
			})
		},
	}
	c.Flags().BoolVar(&req.Held, "held", false, "only what is held now")
	c.Flags().StringVar(&req.Owner, "owner", "", "only of this owner `ID`")
	return c
}

func (a *app) ledgerVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Check every hash of the ledger, and say where a chain is broken",
		Long:    "Check every stream's hash chain.\n\nExit codes: 0 every hash is right; 1 a chain is broken.",
		Example: "  yoi ledger verify --json",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			rep, err := a.verifyLedger(cmd)
			if err != nil {
				return err
			}
			if !rep.OK {
				a.code = exitRefused
			}
			if a.json {
				return a.printJSON(rep)
			}
			var rows [][]string
			for _, s := range rep.Streams {
				state := "ok"
				if s.Break != "" {
					state = "BROKEN at " + s.Break
				}
				live := ""
				if s.Live {
					live = "live"
				}
				rows = append(rows, []string{s.Stream, fmt.Sprint(s.Segments), fmt.Sprint(s.Records), live, state})
			}
			return a.table([]string{"STREAM", "SEGMENTS", "RECORDS", "WRITER", "CHAIN"}, rows)
		},
	}
}

// verifyLedger asks the daemon if there is one; else it reads the ledger
// itself, since a Runtime with a broken ledger does not open.
func (a *app) verifyLedger(cmd *cobra.Command) (rep runtime.LedgerReport, err error) {
	if s := a.daemon(cmd.Context()); s != nil {
		return s.LedgerVerify(cmd.Context())
	}
	return runtime.VerifyLedger(cmd.Context(), a.root)
}

func (a *app) ledgerReplay() *cobra.Command {
	return &cobra.Command{
		Use: "replay", Short: "Remove every leftover of dead processes", Example: "  yoi ledger replay",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				rep, err := s.LedgerReplay(cmd.Context())
				if err != nil {
					return err
				}
				a.printWarnings(rep.Diagnostics)
				if a.json {
					return a.printJSON(rep)
				}
				fmt.Fprintf(a.stdout, "read %s of %s; removed %d of %s; %s adopted, %s kept\n",
					count(rep.Records, "record"), count(rep.Streams, "stream"), rep.Removed, count(rep.Leftovers, "leftover"), count(rep.Adopted, "worker"), count(rep.Kept, "resource"))
				return nil
			})
		},
	}
}
