package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := groupCommand("snapshot", "Write trees to a snapshot store, and take them from one",
		"  yoi snapshot export app --rev v1.2 --to s3://builds/app\n  yoi snapshot import https://store.example/app sha256:…",
		a.snapshotExport(), a.snapshotImport(), a.snapshotList(), a.snapshotRemove())
	c.Long = `A snapshot is an archive of a commit's tree with all git objects that it needs
(its history is cut), or of a workspace's files as they are now. It is named by the
digest of its content: one tree has one digest, on every host.

A STORE is a directory, an http or https URL (GET, PUT, DELETE), or s3://BUCKET/PREFIX,
behind which ?endpoint=URL and region=NAME may stand. Credentials are never part of
it: they are in snapshot-credentials.toml of the Runtime root (mode 0600),

  [[store]]
  url = "https://store.example/app"
  token = "…"        # or user and password; for s3 access_key and secret_key

or for s3 in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.`
	return c
}

// storeArgument makes a directory absolute; URLs stay as they are.
func storeArgument(s string) (string, error) {
	if strings.Contains(s, "://") || strings.HasPrefix(s, "/") || s == "" {
		return s, nil
	}
	return fromHere(s, policy.CodeSnapshotStoreInvalid, "yoi.snapshot")
}

func (a *app) snapshotExport() *cobra.Command {
	var to, rev, repo string
	var scope []string
	c := &cobra.Command{
		Use: "export REPOSITORY|WORKSPACE --to STORE", Short: "Write a commit's tree, or a workspace, to a store",
		Long: `Write a commit's tree, or a workspace's files as they are now, to a store.

An argument that begins with ws- and names a workspace exports that workspace: tracked
and untracked files, no part of its git directory, and no Worker may live in it.
The digest that is printed names the snapshot everywhere.`,
		Example: "  yoi snapshot export app --rev v1.2 --to snapshots\n  yoi snapshot export ws-0123456789abcdef --to s3://builds/app",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if to == "" {
				return usageError{fmt.Errorf("--to names no store")}
			}
			store, err := storeArgument(to)
			if err != nil {
				return err
			}
			req := runtime.ExportSnapshotRequest{Store: store, Scope: scope, RepositoryID: policy.RepositoryID(repo)}
			if strings.HasPrefix(argv[0], "ws-") && repo == "" || repo != "" {
				req.AllocationID = policy.AllocationID(argv[0])
				if cmd.Flags().Changed("rev") {
					return usageError{fmt.Errorf("--rev does not go with a workspace")}
				}
			} else {
				req.RepositoryID = policy.RepositoryID(argv[0])
				if req.Selector, err = parseRev(rev); err != nil {
					return err
				}
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				out, err := s.ExportSnapshot(cmd.Context(), req)
				if err != nil {
					return err
				}
				a.printWarnings(out.Warnings)
				if a.json {
					return a.printJSON(out)
				}
				what := count(int(out.Objects), "object")
				if out.Kind == "workspace" {
					what += ", " + count(int(out.Files), "file")
				}
				return a.pairs("digest", out.Digest, "kind", out.Kind, "commit", out.Point.CommitID, "holds", what, "size", size(out.Bytes), "source", out.Source)
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "the `STORE`: a directory, a URL, or s3://BUCKET/PREFIX")
	c.Flags().StringVar(&rev, "rev", "HEAD", "the commit: a `REVISION`, or branch:NAME, tag:NAME, commit:ID, ref:refs/…")
	c.Flags().StringArrayVar(&scope, "scope", nil, "workspaces made of it get only this `DIRECTORY` (repeatable)")
	c.Flags().StringVar(&repo, "repo", "", "which `REPOSITORY` of a workspace with several")
	return c
}

func (a *app) snapshotImport() *cobra.Command {
	var id string
	var scope []string
	c := &cobra.Command{
		Use: "import STORE DIGEST", Short: "Take a snapshot into the cache, ready for workspaces",
		Long: `Fetch a snapshot, check it, and fill the cache from it. The store becomes a
repository, so that workspaces select snapshots of it:

  yoi ws create ID --rev snapshot:sha256:… --strategy remote_snapshot

Importing is not needed before that: the first workspace does it.`,
		Example: "  yoi snapshot import --id app https://store.example/app sha256:…",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			store, err := storeArgument(argv[0])
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				r, err := s.ImportSnapshot(cmd.Context(), runtime.ImportSnapshotRequest{
					Store: store, Digest: argv[1], RepositoryID: policy.RepositoryID(id), Scope: scope,
				})
				if err != nil {
					return err
				}
				a.printWarnings(r.Warnings)
				if a.json {
					return a.printJSON(r)
				}
				p := r.Point
				return a.pairs("repository", string(p.RepositoryID), "commit", p.CommitID, "tree", p.TreeID, "selector", p.Selector.String(), "subject", p.Subject)
			})
		},
	}
	c.Flags().StringVar(&id, "id", "", "the repository's `ID` (default: the store's last directory)")
	c.Flags().StringArrayVar(&scope, "scope", nil, "only this `DIRECTORY` (repeatable)")
	return c
}

func (a *app) snapshotList() *cobra.Command {
	return &cobra.Command{
		Use: "list STORE", Short: "List a store's snapshots", Example: "  yoi snapshot list s3://builds/app", Aliases: []string{"ls"},
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			store, err := storeArgument(argv[0])
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListStoredSnapshots(cmd.Context(), store)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list.Items))
				for _, i := range list.Items {
					rows = append(rows, []string{i.Digest, size(i.Bytes), ago(i.StoredAt)})
				}
				return a.table([]string{"DIGEST", "SIZE", "STORED"}, rows)
			})
		},
	}
}

func (a *app) snapshotRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove STORE DIGEST", Short: "Take a snapshot out of a store", Example: "  yoi snapshot remove snapshots sha256:…", Aliases: []string{"rm"},
		Long: "Take a snapshot out of a store. What was imported of it stays in the caches.",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			store, err := storeArgument(argv[0])
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemoveStoredSnapshot(cmd.Context(), store, policy.SnapshotDigest(argv[1])); err != nil {
					return err
				}
				return a.removed(argv[1])
			})
		},
	}
}
