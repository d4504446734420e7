//! What is trained: the values of all layers, their gradients and the optimizer's state, each in one block.

use std::borrow::Cow;
use std::slice;

use arena_collective::Collective;
use arena_scope::{Arena, BlockLayout, Device, ParameterBlock, PartId, View, ViewMut};

use crate::backend::host::{AdamConfig, SgdConfig};
use crate::backend::{Backend, In, Out, Weights, WeightsMut};
use crate::error::TrainError;
use crate::init::Initial;
use crate::optimizer::Optimizer;
use crate::training::RunConfig;

/// The parameters of a network that is being built, with their first values.
#[derive(Debug)]
pub struct NewParameters {
    layout: BlockLayout,
    initial: Vec<Initial>,
}

/// The parameters of a network. They lie below the mark and never move.
///
/// A layer knows its tensors by [`PartId`]. The update goes over whole blocks, in one call: it happens to all
/// parameters or to none.
#[derive(Debug)]
pub struct Parameters<D: Device> {
    values: ParameterBlock<f32, D>,
    /// Of the last batch, which overwrites them whole. Where there are ranks, the sums over all of them, with a report
    /// behind them.
    gradients: ParameterBlock<f32, D>,
    /// Of the batches of a step, where it or the run has several, with a report behind them.
    sums: Option<(ParameterBlock<f32, D>, PartId)>,
    has_ranks: bool,
    state: State<D>,
}

/// Views of what a checkpoint keeps, each with its name there.
pub type Saved<V> = Vec<(String, V)>;

/// What an update changes, takes, and changes as well.
type Operands<'p, D> = (ViewMut<'p, f32, D>, View<'p, f32, D>, &'p mut State<D>);

/// An optimizer and its state.
#[derive(Debug)]
enum State<D: Device> {
    Sgd(SgdConfig, ParameterBlock<f32, D>),
    Adam(AdamConfig, [ParameterBlock<f32, D>; 2]),
}

impl NewParameters {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { layout: BlockLayout::new::<f32>(), initial: Vec::new() }
    }

    /// Adds a tensor of `len` values. In a checkpoint it has this name.
    ///
    /// # Errors
    ///
    /// When all together are larger than any memory.
    pub fn add(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        len: usize,
        initial: Initial,
    ) -> Result<PartId, TrainError> {
        let part = self.layout.add(name, len)?;
        self.initial.push(initial);
        Ok(part)
    }

    /// Puts them into `arena`, with zero gradients, with room for sums of gradients where the run needs it, and with a zero
    /// state for the optimizer. Where nothing is computed, the values are not made.
    ///
    /// # Errors
    ///
    /// When the arena has no room, or the device refuses.
    pub fn build<B: Backend>(
        &self,
        arena: &Arena<B::Device>,
        config: &RunConfig<impl Sized>,
    ) -> Result<Parameters<B::Device>, TrainError> {
        let zeros = || ParameterBlock::zeroed(arena, &self.layout);
        let mut values = zeros()?;
        if B::COMPUTES {
            let mut filled = Vec::new();
            for ((_, mut part), initial) in values.split_mut().zip(&self.initial) {
                filled.resize(part.len(), 0.0);
                initial.fill(&mut filled);
                part.write(&filled)?;
            }
        }
        // The mean loss, and how it stands with each rank.
        let has_ranks = config.share.is_part();
        let mut reporting = self.layout.clone();
        let ranks = if has_ranks { config.share.of as usize } else { 0 };
        let report = reporting.add("report", 1 + ranks)?;
        let has_sums = config.accumulate > 1 || has_ranks;
        let sums = has_sums.then(|| ParameterBlock::zeroed(arena, &reporting)).transpose()?;
        let sums = sums.map(|sums| (sums, report));
        let gradients =
            if has_ranks { ParameterBlock::zeroed(arena, &reporting)? } else { zeros()? };
        let state = match config.optimizer {
            Optimizer::Sgd(config) => State::Sgd(config, zeros()?),
            Optimizer::Adam(config) => State::Adam(config, [zeros()?, zeros()?]),
        };
        Ok(Parameters { values, gradients, sums, has_ranks, state })
    }
}

impl Default for NewParameters {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Device> Parameters<D> {
    /// The values of one tensor.
    ///
    /// # Errors
    ///
    /// When the part is of another network.
    pub fn value(&self, part: PartId) -> Result<View<'_, f32, D>, TrainError> {
        Ok(self.values.view(part)?)
    }

    /// The gradient of one tensor.
    ///
    /// # Errors
    ///
    /// When the part is of another network.
    pub fn gradient(&self, part: PartId) -> Result<View<'_, f32, D>, TrainError> {
        Ok(self.gradients.view(part)?)
    }

    /// A layer's weights and biases.
    ///
    /// # Errors
    ///
    /// When a part is of another network.
    pub fn weights(&self, [weight, bias]: [PartId; 2]) -> Result<Weights<'_, D>, TrainError> {
        Ok(Weights { weight: self.values.view(weight)?, bias: self.values.view(bias)? })
    }

    /// Where the gradients of a layer's weights and biases go.
    ///
    /// # Errors
    ///
    /// When a part is of another network.
    pub fn gradients_mut(&mut self, layer: [PartId; 2]) -> Result<WeightsMut<'_, D>, TrainError> {
        let [weight, bias] = self.gradients.views_mut(layer)?;
        Ok(WeightsMut { weight, bias })
    }

    /// The ids of all tensors, in the order of the layers, and their names.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (PartId, &str)> {
        self.values.layout().parts()
    }

    /// Sets the sums to zero, and their report, if there is room for any.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn clear_sums(&mut self) -> Result<(), TrainError> {
        match &mut self.sums {
            Some((sums, _)) => Ok(sums.whole_mut().fill(0.0)?),
            None => Ok(()),
        }
    }

    /// Adds the gradients, times `share`, to the sums, and `loss`, of one element, to their report.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn add_to_sums<B: Backend<Device = D>>(
        &mut self,
        backend: &B,
        share: f32,
        loss: In<'_, B>,
    ) -> Result<(), TrainError> {
        let Some((sums, report)) = &mut self.sums else { return Ok(()) };
        let len = self.values.layout().len();
        let gradients = self.gradients.whole().range(..len)?;
        backend.add_scaled(sums.whole_mut().range(..len)?, share, gradients)?;
        backend.add_scaled(sums.view_mut(*report)?.range(..1)?, share, loss)
    }

    /// The loss that the sums report.
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub fn summed_loss(&self) -> Result<f32, TrainError> {
        let mut loss = [0.0];
        if let Some((sums, report)) = &self.sums {
            sums.view(*report)?.range(..1)?.read_into(&mut loss)?;
        }
        Ok(loss[0])
    }

    /// Writes into the sums' report how it stands with a rank. 0, as [`clear_sums`](Self::clear_sums) leaves it, is well.
    ///
    /// # Errors
    ///
    /// When the run has no rank of this number; when the device refuses.
    pub fn report(&mut self, rank: u32, state: f32) -> Result<(), TrainError> {
        let Some((sums, report)) = &mut self.sums else { return Ok(()) };
        let at = 1 + rank as usize;
        Ok(sums.view_mut(*report)?.range(at..=at)?.write(&[state])?)
    }

    /// Adds up the sums of all ranks, and what they report, in one call. From then on an update takes these.
    ///
    /// # Errors
    ///
    /// When the ranks do not come together; when the device refuses.
    pub fn add_up(
        &mut self,
        ranks: &dyn Collective<D>,
        report: &mut Vec<f32>,
    ) -> Result<(), TrainError> {
        let Some((sums, part)) = &self.sums else { return Ok(()) };
        ranks.all_reduce_sum(sums.whole(), self.gradients.whole_mut())?;
        ranks.wait()?;
        report.resize(part.len(), 0.0);
        Ok(self.gradients.view(*part)?.read_into(report)?)
    }

    /// Where the block that ranks add up lies, in bytes from the region's base.
    #[must_use]
    pub fn sums_offset_bytes(&self, base_address: u64) -> u64 {
        self.sums.as_ref().map_or(0, |(sums, _)| sums.buffer().address() - base_address)
    }

    /// The values, the mean gradients of a step, and the optimizer's state.
    fn update_operands(&mut self) -> Result<Operands<'_, D>, TrainError> {
        let gradients = match &self.sums {
            Some((sums, _)) if !self.has_ranks => sums,
            _ => &self.gradients,
        };
        let gradients = gradients.whole().range(..self.values.layout().len())?;
        Ok((self.values.whole_mut(), gradients, &mut self.state))
    }

    /// Moves every parameter against its gradient, with the rate times `rate_factor`. `step` counts from 1.
    ///
    /// # Errors
    ///
    /// When the device refuses; no parameter has moved then.
    pub fn update<B: Backend<Device = D>>(
        &mut self,
        backend: &B,
        step: u64,
        rate_factor: f32,
    ) -> Result<(), TrainError> {
        let (values, gradients, state) = self.update_operands()?;
        match state {
            State::Sgd(config, velocity) => {
                let learning_rate = config.learning_rate * rate_factor;
                let config = SgdConfig { learning_rate, ..*config };
                backend.sgd_step(&config, values, gradients, velocity.whole_mut())
            }
            State::Adam(config, moments) => {
                let learning_rate = config.learning_rate * rate_factor;
                let config = AdamConfig { learning_rate, ..*config };
                let moments = moments.each_mut().map(ParameterBlock::whole_mut);
                backend.adam_step(&config, step, values, gradients, moments)
            }
        }
    }

    /// Counts a step on the device, and leaves its rates there, for
    /// [`update_scheduled`](Self::update_scheduled). The rate falls in a line to 0 over
    /// `steps_in_all` steps.
    ///
    /// # Errors
    ///
    /// When a length does not fit, or the device refuses or does not count steps.
    pub fn advance<B: Backend<Device = D>>(
        &self,
        backend: &B,
        steps_in_all: u64,
        steps: Out<'_, B, u64>,
        rates: Out<'_, B>,
    ) -> Result<(), TrainError> {
        match &self.state {
            State::Sgd(config, _) => backend.advance_sgd(config, steps_in_all, steps, rates),
            State::Adam(config, _) => backend.advance_adam(config, steps_in_all, steps, rates),
        }
    }

    /// [`update`](Self::update) with the rates that [`advance`](Self::advance) left on the device.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update).
    pub fn update_scheduled<B: Backend<Device = D>>(
        &mut self,
        backend: &B,
        rates: In<'_, B>,
    ) -> Result<(), TrainError> {
        let (values, gradients, state) = self.update_operands()?;
        match state {
            State::Sgd(config, velocity) => {
                backend.sgd_scheduled(config, rates, values, gradients, velocity.whole_mut())
            }
            State::Adam(config, moments) => {
                let moments = moments.each_mut().map(ParameterBlock::whole_mut);
                backend.adam_scheduled(config, rates, values, gradients, moments)
            }
        }
    }

    /// What a checkpoint keeps, by its name there: the values of each tensor and the optimizer's state of it.
    ///
    /// # Errors
    ///
    /// None is expected: the parts are these blocks' own.
    pub fn saved(&self) -> Result<Saved<View<'_, f32, D>>, TrainError> {
        let mut saved = Vec::new();
        for (part, name) in self.parts() {
            saved.push((name.to_owned(), self.values.view(part)?));
        }
        for (n, block) in self.state.blocks().iter().enumerate() {
            for (part, name) in self.parts() {
                saved.push((state_name(name, n), block.view(part)?));
            }
        }
        Ok(saved)
    }

    /// [`saved`](Self::saved), to be changed.
    pub fn saved_mut(&mut self) -> Saved<ViewMut<'_, f32, D>> {
        let names: Vec<String> = self.parts().map(|(_, name)| name.to_owned()).collect();
        let values = names.iter().cloned().zip(self.values.split_mut().map(|(_, view)| view));
        let mut saved: Vec<_> = values.collect();
        for (n, block) in self.state.blocks_mut().iter_mut().enumerate() {
            let names = names.iter().map(|name| state_name(name, n));
            saved.extend(names.zip(block.split_mut().map(|(_, view)| view)));
        }
        saved
    }
}

fn state_name(tensor: &str, n: usize) -> String {
    format!("{tensor}.state{n}")
}

impl<D: Device> State<D> {
    fn blocks(&self) -> &[ParameterBlock<f32, D>] {
        match self {
            Self::Sgd(_, velocity) => slice::from_ref(velocity),
            Self::Adam(_, moments) => moments,
        }
    }

    fn blocks_mut(&mut self) -> &mut [ParameterBlock<f32, D>] {
        match self {
            Self::Sgd(_, velocity) => slice::from_mut(velocity),
            Self::Adam(_, moments) => moments,
        }
    }
}
