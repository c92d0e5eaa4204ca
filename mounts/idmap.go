package mounts

// IDMap is one line of a user namespace's uid_map or gid_map
// (user_namespaces(7)): Count ids from Inside on are the ids from Outside on.
type IDMap struct{ Inside, Outside, Count uint32 }
