package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/internal/bundle"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) bundleCommand() *cobra.Command {
	return groupCommand("bundle", "Store configuration directories that Workers read", "  yoi bundle add ./agent-config\n  yoi bundle list",
		a.bundleAdd(), a.bundleList(), a.bundleRemove())
}

func (a *app) bundleAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add DIRECTORY", Short: "Store a directory under its digest",
		Long: `Store a directory, up to 4096 entries and 32 MiB, under the digest of its content,
which is printed: names, contents, which files are executable, and links that stay
within. With --config-bundle, or config_bundle in a policy, Workers have it at
/run/yoi/config, read-only. Storing it again is no error; yoi gc removes a bundle that
no workspace has and that has not been used for a week.`,
		Example: "  yoi bundle add ./agent-config\n  yoi bundle add --json .",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				pr, pw := io.Pipe()
				packed := make(chan error, 1)
				go func() {
					err := bundle.Pack(argv[0], pw)
					pw.CloseWithError(err) // nil is the archive's end
					packed <- err
				}()
				b, err := s.AddBundle(cmd.Context(), pr)
				pr.Close()
				if perr := <-packed; perr != nil && perr != io.ErrClosedPipe {
					return perr // why the archive did not arrive whole
				}
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(b)
				}
				fmt.Fprintln(a.stdout, b.Digest)
				return nil
			})
		},
	}
}

func (a *app) bundleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the stored bundles, last used first", Example: "  yoi bundle list --json", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListBundles(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list))
				for _, b := range list {
					rows = append(rows, []string{string(b.Digest), ago(b.UsedAt)})
				}
				return a.table([]string{"DIGEST", "USED"}, rows)
			})
		},
	}
}

func (a *app) bundleRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove DIGEST", Short: "Remove a bundle that no workspace has", Example: "  yoi bundle remove sha256:…", Aliases: []string{"rm"},
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemoveBundle(cmd.Context(), policy.BundleDigest(argv[0])); err != nil {
					return err
				}
				return a.removed(argv[0])
			})
		},
	}
}
