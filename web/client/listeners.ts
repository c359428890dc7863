/** Functions that are called when something happens. */
export class Listeners<T> {
  private readonly all = new Set<(event: T) => void>();

  /** Call `listener` from now on, until the function this gives back is called. */
  add(listener: (event: T) => void): () => void {
    this.all.add(listener);
    return () => this.all.delete(listener);
  }

  tell(event: T): void {
    for (const listener of [...this.all]) listener(event);
  }
}
