// parent is the directory above a path of a workspace, "" for its root.
export function parent(path: string): string {
	const i = path.replace(/\/+$/, "").lastIndexOf("/");
	return i < 0 ? "" : path.slice(0, i);
}

export function join(dir: string, name: string): string {
	return dir === "" || dir === "." ? name : `${dir}/${name}`;
}
