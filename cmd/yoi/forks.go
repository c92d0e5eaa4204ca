package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// forkCommands make workspaces out of workspaces.
func (a *app) forkCommands() []*cobra.Command {
	return []*cobra.Command{a.wsFork(), a.wsSnapshot(), a.wsSnapshots(), a.wsRollback(), a.wsRemoveSnapshot()}
}

func (a *app) wsFork() *cobra.Command {
	var req runtime.ForkRequest
	var workspace, cleanup string
	c := &cobra.Command{
		Use: "fork ID", Short: "Make a workspace out of another, as it is now",
		Long: `Make a workspace out of another, live or not: files, commits, index and stash.
Its scratch does not come along. Beside a live Worker a btrfs snapshot is of one
instant; the other strategies take each file at a moment of its own.`,
		Example: "  yoi ws fork ws-0123456789abcdef\n  yoi ws fork --cleanup keep_for:2h ws-0123456789abcdef",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req.WorkspaceID = policy.WorkspaceID(workspace)
			if cleanup != "" {
				p, err := policy.ParseCleanupPolicy(cleanup)
				if err != nil {
					return err
				}
				req.Cleanup = &p
			}
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				w, err := s.ForkWorkspace(cmd.Context(), policy.AllocationID(argv[0]), req)
				if err != nil {
					return err
				}
				return a.showWorkspace(w)
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&workspace, "workspace-id", "", "the project's `ID` (default: the original's)")
	fl.StringVar(&cleanup, "cleanup", "", "`POLICY` as of yoi ws create (default: the original's)")
	fl.StringVar(&req.IdempotencyKey, "idempotency-key", "", "a repeated request with this `KEY` returns the first one's workspace")
	return c
}

func (a *app) wsSnapshot() *cobra.Command {
	var req runtime.SnapshotRequest
	c := &cobra.Command{
		Use: "snapshot ID", Short: "Keep a workspace as it is now, to roll back to", Example: "  yoi ws snapshot --label before-merge ws-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				snap, err := s.SnapshotWorkspace(cmd.Context(), policy.AllocationID(argv[0]), req)
				if err != nil {
					return err
				}
				return a.showSnapshot(snap)
			})
		},
	}
	c.Flags().StringVar(&req.Label, "label", "", "what it is, for people: `TEXT`")
	return c
}

func (a *app) showSnapshot(s runtime.Snapshot) error {
	if a.json {
		return a.printJSON(s)
	}
	return a.pairs("id", string(s.ID), "workspace", string(s.AllocationID), "label", s.Label, "strategy", string(s.Strategy), "created", ago(s.CreatedAt))
}

func (a *app) wsSnapshots() *cobra.Command {
	return &cobra.Command{
		Use: "snapshots ID", Short: "List a workspace's snapshots, oldest first", Example: "  yoi ws snapshots ws-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListSnapshots(cmd.Context(), policy.AllocationID(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]any{"items": list})
				}
				rows := make([][]string, 0, len(list))
				for _, v := range list {
					rows = append(rows, []string{string(v.ID), ago(v.CreatedAt), v.Label})
				}
				return a.table([]string{"ID", "CREATED", "LABEL"}, rows)
			})
		},
	}
}

func (a *app) wsRollback() *cobra.Command {
	return &cobra.Command{
		Use: "rollback ID SNAPSHOT", Short: "Make a workspace what it was at a snapshot",
		Long: `Make a workspace what it was at a snapshot. Nothing is lost: what it was until now
becomes a snapshot, which is printed. No Worker may run on it.`,
		Example: "  yoi ws rollback ws-0123456789abcdef ws-fedcba9876543210",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				snap, err := s.RollbackWorkspace(cmd.Context(), policy.AllocationID(argv[0]), runtime.SnapshotID{ID: policy.AllocationID(argv[1])})
				if err != nil {
					return err
				}
				return a.showSnapshot(snap)
			})
		},
	}
}

func (a *app) wsRemoveSnapshot() *cobra.Command {
	return &cobra.Command{
		Use: "rm-snapshot ID SNAPSHOT", Short: "Remove one of a workspace's snapshots", Example: "  yoi ws rm-snapshot ws-0123456789abcdef ws-fedcba9876543210",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemoveSnapshot(cmd.Context(), policy.AllocationID(argv[0]), runtime.SnapshotID{ID: policy.AllocationID(argv[1])}); err != nil {
					return err
				}
				if !a.json {
					fmt.Fprintf(a.stdout, "%s removed\n", argv[1])
				}
				return nil
			})
		},
	}
}
