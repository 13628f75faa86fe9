/** Requests of the page Layers, with the types of their answers. */

export interface TaskMix {
  model: string;
  task: string;
  /** Softmax weights of the layers, which sum to 1. */
  weights: number[];
  gamma: number;
  /** Numbers of the layers: 0 for the embeddings. */
  layers: number[];
}

export interface LayersAnswer {
  tasks: TaskMix[];
}
